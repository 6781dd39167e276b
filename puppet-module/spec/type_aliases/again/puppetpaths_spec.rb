# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::PuppetPaths' do
  [{ 'agent_catalog_run_lockfile' => '/l1', 'agent_disabled_lockfile' => '/l2', 'lastrunfile' => '/l3', 'pidfile' => '/l4' }, {}].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'pidfile' => 'relative' }, { 'statedir' => '/x' }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
