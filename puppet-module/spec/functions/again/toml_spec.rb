# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::toml' do
  it { is_expected.to run.with_params(7).and_return('7') }
  it { is_expected.to run.with_params(true).and_return('true') }
  it { is_expected.to run.with_params(false).and_return('false') }
  it { is_expected.to run.with_params('').and_return('""') }
  it { is_expected.to run.with_params('a "b" \\c').and_return('"a \"b\" \\\\c"') }
  it { is_expected.to run.with_params("\t\n\r\b\f\e\u0000\u007f").and_return('"\t\n\r\b\f\u001b\u0000\u007f"') }
  it { is_expected.to run.with_params("\u00fc \u{1f600} \u2028").and_return("\"\u00fc \u{1f600} \u2028\"") }
  it { is_expected.to run.with_params([]).and_return('[]') }
  it { is_expected.to run.with_params(['a', 'b"']).and_return('["a", "b\""]') }
  it { is_expected.to run.with_params(1.5).and_raise_error(ArgumentError) }
  it { is_expected.to run.with_params([1]).and_raise_error(ArgumentError) }
  it { is_expected.to run.with_params(nil).and_raise_error(ArgumentError) }
end
