# frozen_string_literal: true

require 'facterdb'
require 'fileutils'
require 'json'
require 'tmpdir'

ROOT = File.expand_path('..', __dir__)

# The fact must not find a helper on this machine.
ENV['AGAIN_BIN'] = '/nonexistent/again'

require 'rspec-puppet'

# The module under its name, with stand-ins for the files that `make build` puts into it, so that the specs need no build.
MODULE_NAME = JSON.parse(File.read("#{ROOT}/metadata.json"))['name'].split('-', 2).last
MODULES = Dir.mktmpdir('again-spec')
at_exit { FileUtils.remove_entry(MODULES) }
FileUtils.mkdir_p("#{MODULES}/#{MODULE_NAME}")
%w[manifests types functions lib templates data hiera.yaml metadata.json].each do |name|
  File.symlink("#{ROOT}/#{name}", "#{MODULES}/#{MODULE_NAME}/#{name}")
end
%w[x86_64/again aarch64/again x86_64/again-fleet aarch64/again-fleet man/again.8 man/again.toml.5 man/again-fleet.8 man/again-fleet.toml.5 completions/again.bash completions/_again completions/again.fish completions/again-fleet.bash completions/_again-fleet completions/again-fleet.fish].each do |name|
  file = "#{MODULES}/#{MODULE_NAME}/files/#{name}"
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

# The facts of a system: FacterDB's newest, or those in spec/facts for what Debian's FacterDB is too old for. One by one, since FacterDB
# itself reads all of its files to find one.
def facts_of(system)
  ours = "#{__dir__}/facts/#{system}.json"
  file = [ours].find { |path| File.exist?(path) } ||
         FacterDB.default_fact_files.select { |path| File.basename(path) == "#{system}-x86_64.facts" }
                 .max_by { |path| Gem::Version.new(File.basename(File.dirname(path))) }
  facts = JSON.parse(File.read(file)).transform_keys(&:to_sym)
  # Some of FacterDB's were taken by somebody who was not root.
  facts.merge(identity: (facts[:identity] || {}).merge('privileged' => true))
end

SYSTEMS = %w[
  debian-12 debian-13 redhat-8 redhat-9 rocky-8 rocky-9 almalinux-8 almalinux-9 sles-15 alpine-3
].to_h { |system| [system, facts_of(system)] }.freeze
# For which there is no helper.
OTHER_SYSTEMS = %w[windows-2019 darwin-20 freebsd-13].to_h { |system| [system, facts_of(system)] }.freeze

# What the fact says of a run on a node where everything is in place.
PATHS = {
  'agent_catalog_run_lockfile' => '/v/state/agent_catalog_run.lock',
  'agent_disabled_lockfile'    => '/v/state/agent_disabled.lock',
  'lastrunfile'                => '/v/public/last_run_summary.yaml',
  'pidfile'                    => '/run/puppet/agent.pid',
}.freeze
PATH_FLAGS = PATHS.map { |name, path| "--#{name.tr('_', '-')}=#{path}" }.freeze
FACT = { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false, 'systemd' => true, 'paths' => PATHS }.freeze
