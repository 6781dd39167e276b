# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Check' do
  it { is_expected.to allow_values('true', " a &&\n b", ['/bin/true'], ['/usr/bin/test', '-f', '']) }
  it { is_expected.not_to allow_values('', " \n", [], ['true'], [['/bin/true']], "a\u0000", ['/bin/true', 1], nil) }
end
