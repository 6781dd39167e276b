# frozen_string_literal: true

require 'fileutils'
require 'tmpdir'

root = File.expand_path('..', __dir__)

# The facts of the supported systems, as facter gave them there, under the version of the facter that the
# specs run with: Debian's FacterDB ends with Debian 11.
ENV['FACTERDB_SEARCH_PATHS'] ||= File.join(__dir__, 'facts')
ENV['FACTERDB_SKIP_DEFAULTDB'] ||= '1'
# The fact must not find a helper on this machine.
ENV['AGAIN_BIN'] = '/nonexistent/again'

require 'rspec-puppet'
require 'rspec-puppet-facts'

include RspecPuppetFacts

# The module as `common`, with stand-ins for the files that `make build` puts into it, so that the specs need no build.
MODULES = Dir.mktmpdir('again-spec')
at_exit { FileUtils.remove_entry(MODULES) }
FileUtils.mkdir_p("#{MODULES}/common")
%w[manifests types functions lib templates data hiera.yaml metadata.json].each do |name|
  File.symlink("#{root}/#{name}", "#{MODULES}/common/#{name}")
end
%w[x86_64/again aarch64/again man/again.8 man/again.toml.5 completions/again.bash completions/_again completions/again.fish].each do |name|
  file = "#{MODULES}/common/files/#{name}"
  FileUtils.mkdir_p(File.dirname(file))
  File.write(file, "stand-in\n")
end

RSpec.configure do |config|
  config.mock_with :rspec
  config.module_path = MODULES
  config.setup_fixtures = false
  config.strict_variables = true
  config.stringify_facts = false
end

# What the fact says of a run on a node where everything is in place.
PATHS = {
  'agent_catalog_run_lockfile' => '/v/state/agent_catalog_run.lock',
  'agent_disabled_lockfile'    => '/v/state/agent_disabled.lock',
  'lastrunfile'                => '/v/public/last_run_summary.yaml',
  'pidfile'                    => '/run/puppet/agent.pid',
}.freeze
PATH_FLAGS = PATHS.map { |name, path| "--#{name.tr('_', '-')}=#{path}" }.freeze
FACT = { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false, 'systemd' => true, 'paths' => PATHS }.freeze
