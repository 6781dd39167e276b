# frozen_string_literal: true

require 'facterdb'
require 'fileutils'
require 'json'
require 'tmpdir'

ROOT = File.expand_path('..', __dir__)

# The fact must not find a helper on this machine.
ENV['AGAIN_BIN'] = '/nonexistent/again'

require 'rspec-puppet'
require 'rspec-puppet-facts'

# The module under its name, with stand-ins for the files that `make build` puts into it, so that the specs need no build.
MODULE_NAME = JSON.parse(File.read("#{ROOT}/metadata.json"))['name'].split('-', 2).last
MODULES = Dir.mktmpdir('again-spec')
at_exit { FileUtils.remove_entry(MODULES) }
FileUtils.mkdir_p("#{MODULES}/#{MODULE_NAME}")
%w[manifests types functions lib templates data hiera.yaml metadata.json].each do |name|
  File.symlink("#{ROOT}/#{name}", "#{MODULES}/#{MODULE_NAME}/#{name}")
end
%w[
  x86_64/again aarch64/again x86_64/again-fleet aarch64/again-fleet man/again.8 man/again-json.5 man/again.toml.5
  man/again-fleet.8 man/again-fleet-json.5 man/again-fleet.toml.5
  completions/again.bash completions/_again completions/again.fish completions/again-fleet.bash completions/_again-fleet completions/again-fleet.fish
].each do |name|
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

# Of what FacterDB has, the newest file of each system in metadata.json and of those that are not supported: it reads all of its files anew for
# each system.
module NewestFacts
  OTHERS = %w[windows-2019 darwin-20 freebsd-13].freeze
  NAMES = JSON.parse(File.read("#{ROOT}/metadata.json"))['operatingsystem_support'].flat_map do |system|
    name = system['operatingsystem'].downcase
    system.key?('operatingsystemrelease') ? system['operatingsystemrelease'].map { |release| "#{name}-#{release}" } : [name]
  end.freeze

  def default_fact_files
    files = super.select { |path| (NAMES + OTHERS).include?(File.basename(path, '-x86_64.facts')) }
    newest = files.group_by { |path| File.basename(path) }.values
    newest.map { |paths| paths.max_by { |path| Gem::Version.new(File.basename(File.dirname(path))) } }
  end
end
FacterDB.singleton_class.prepend(NewestFacts)
# Systems that Debian's FacterDB lacks. Each file says whether it was measured or composed.
ENV['FACTERDB_SEARCH_PATHS'] = "#{__dir__}/facts"
# That facts are of another Facter than this one.
RspecPuppetFacts.define_singleton_method(:warning) { |_message| nil }
include RspecPuppetFacts

# Some of FacterDB's were taken by somebody who was not root.
def as_root(facts)
  facts.merge(identity: (facts[:identity] || {}).merge('privileged' => true))
end

SYSTEMS = on_supported_os.to_h { |name, facts| [name.delete_suffix('-x86_64'), as_root(facts)] }.freeze
# For which there is no helper.
OTHER_SYSTEMS = FacterDB.default_fact_files.filter_map do |path|
  name = File.basename(path, '-x86_64.facts')
  [name, as_root(JSON.parse(File.read(path)).transform_keys(&:to_sym))] if NewestFacts::OTHERS.include?(name)
end.to_h.freeze

# What the fact says of a run on a node where everything is in place.
PATHS = {
  'agent_catalog_run_lockfile' => '/v/state/agent_catalog_run.lock',
  'agent_disabled_lockfile'    => '/v/state/agent_disabled.lock',
  'lastrunfile'                => '/v/public/last_run_summary.yaml',
  'pidfile'                    => '/run/puppet/agent.pid',
}.freeze
PATH_FLAGS = PATHS.map { |name, path| "--#{name.tr('_', '-')}=#{path}" }.freeze
FACT = { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false, 'systemd' => true, 'paths' => PATHS }.freeze
