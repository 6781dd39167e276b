# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Absolutepath' do
  it { is_expected.to allow_values('/', '/a b', '/a"b', '/a\\b', "/\u00fc") }
  it { is_expected.not_to allow_values('', 'a', "/a\n", "/a\tb", "/\u0000", "/\u007f", 7, nil) }
end
