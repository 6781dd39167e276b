# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Path' do
  it { is_expected.to allow_values('/a', '/usr/local/bin/again', '/opt/a-b_c.d+e@f:g,h~', "/\u00fc") }
  it { is_expected.not_to allow_values('', '/', 'a', './a', '/a b', '/a%', '/a$b', "/a\n", "/a'", '/a"', '/a\\', '/a;b', 7, nil) }
end
