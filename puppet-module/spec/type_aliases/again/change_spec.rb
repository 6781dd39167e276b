# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Change' do
  it { is_expected.to allow_values('changed', 'started', 'stopped', 'failed', 'refreshed') }
  it { is_expected.not_to allow_values('', 'gone', 'Started', ['started'], 1) }
end
