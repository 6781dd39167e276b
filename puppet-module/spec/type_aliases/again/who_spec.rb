# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Who' do
  it { is_expected.to allow_values('web1.example.com', 'web*.example.com', '*', 'pp_role=frontend', '1.3.6.1.4.1.34380.1.2.1=a b') }
  it { is_expected.not_to allow_values('', 'Web1', 'a/b', '=x', 'pp_role=', "pp_role=a\nb", 1) }
end
