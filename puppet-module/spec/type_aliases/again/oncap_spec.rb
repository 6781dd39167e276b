# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::OnCap' do
  it { is_expected.to allow_values('fail', 'wait', 'skip') }
  it { is_expected.not_to allow_values('', 'Fail', 'stop', true, nil) }
end
