# frozen_string_literal: true

require 'spec_helper'
require 'support/hooks'

$LOAD_PATH.unshift File.expand_path('../../../lib', __dir__)

describe 'the type again_inventory' do
  let(:type) { Puppet::Type.type(:again_inventory) }
  let(:scratch) { Dir.mktmpdir('again-inventory') }
  let(:program) { "#{scratch}/again-fleet" }
  let(:messages) { [] }

  before do
    Puppet[:vardir] = scratch
    Puppet[:statedir] = scratch
    Puppet::Util::Log.newdestination(Puppet::Test::LogCollector.new(messages))
    stub_program
  end

  after do
    Puppet::AgainFleetEnd.command = nil
    Puppet::Util::Log.close_all
    FileUtils.remove_entry(scratch)
  end

  # It writes down its arguments, one line for each time, and what it is told.
  def stub_program(ending = 'exit 0')
    File.write(program, "#!/bin/sh\necho \"$*\" >>#{scratch}/asked\ncase $* in *--end=*) ;; *) cat >#{scratch}/told; esac\n#{ending}\n")
    File.chmod(0o755, program)
  end

  def asked
    File.exist?("#{scratch}/asked") ? File.readlines("#{scratch}/asked", chomp: true) : []
  end

  # Applies a catalog with it and a command that comes first, and ends its report as a run does.
  def apply(command: "/bin/sh -c 'echo exec >>#{scratch}/asked'", host_config: true, **more)
    catalog = Puppet::Resource::Catalog.new('web1', Puppet::Node::Environment.remote(:shop))
    catalog.add_class('settings', 'profile::lb')
    inventory = type.new(name: 'this node', program: program, **more)
    inventory[:require] = 'Exec[first]'
    catalog.add_resource(Puppet::Type.type(:exec).new(name: 'first', command: command), inventory)
    catalog.host_config = host_config
    report = catalog.apply.report
    report.finalize_report
    report
  end

  it 'finds all methods of this Puppet that the module builds on' do
    expect(type.missing_hooks + Hooks.missing).to eq([])
  end

  it 'says in one line of the report that a method is missing, and fails no run' do
    allow(type).to receive(:missing_hooks).and_return(['Puppet::Transaction::Report#finalize_report'])
    apply
    expect(messages.select { |message| message.level == :err }.map(&:message)).to match([%r{\Athis module does not know Puppet .*: it has no Puppet::Transaction::Report#finalize_report}])
  end

  it 'tells before anything is applied, and how it ended' do
    report = apply(facts: { 'role' => 'lb', 'load' => 2, 'virtual' => false })
    expect(asked).to eq(['tell', 'exec', 'tell --end=changed'])
    expect(JSON.parse(File.read("#{scratch}/told"))).to eq(
      'facts' => { 'role' => 'lb', 'load' => 2, 'virtual' => false }, 'classes' => %w[settings profile::lb], 'environment' => 'shop', 'puppet' => Puppet.version,
    )
    expect(report.resource_statuses['Again_inventory[this node]']).to have_attributes(changed: false, failed: false, out_of_sync: false)
  end

  it 'tells with other settings' do
    apply(config: '/x.toml')
    expect(asked).to eq(['--config=/x.toml tell', 'exec', '--config=/x.toml tell --end=changed'])
  end

  it 'tells of a run that failed' do
    apply(command: '/bin/false')
    expect(asked).to eq(['tell', 'tell --end=failed'])
  end

  it 'tells when its turn has come where it could not before' do
    File.rename(program, "#{program}.new")
    apply(command: "/bin/mv #{program}.new #{program}")
    expect(asked).to eq(['tell', 'tell --end=changed'])
    expect(messages.map(&:level)).not_to include(:warning, :err)
  end

  it 'tells before a trigger fires' do
    File.rename(program, "#{program}.new")
    catalog = Puppet::Resource::Catalog.new('web1', Puppet::Node::Environment.remote(:shop))
    exec = Puppet::Type.type(:exec).new(name: "/bin/mv #{program}.new #{program}", notify: 'Trigger[x]', before: 'Again_inventory[this node]')
    trigger = Puppet::Type.type(:trigger).new(name: 'x', hosts: 'lb1', before: 'Again_inventory[this node]')
    catalog.add_resource(exec, trigger, type.new(name: 'this node', program: program))
    catalog.host_config = true
    Puppet::Util.withenv('PATH' => "#{scratch}:#{ENV.fetch('PATH')}") { catalog.apply }
    expect(asked).to eq(['tell', 'trigger --backend=etcd --name=x --to=lb1'])
  end

  it 'warns where it cannot, and fails nothing' do
    stub_program('echo "again-fleet: error: nobody listens"; exit 1')
    expect(apply.status).to eq('changed')
    expect(asked).to eq(%w[tell exec tell])
    warnings = messages.select { |message| message.level == :warning }.map(&:message)
    expect(warnings).to eq(['the fleet is not told what this node is: again-fleet: error: nobody listens'])
  end

  it 'warns where the end cannot be told' do
    stub_program('case $* in *--end=*) echo no; exit 1; esac')
    expect(apply.status).to eq('changed')
    expect(messages.select { |message| message.level == :warning }.map(&:message)).to eq(['the fleet is not told how this run ended: no'])
  end

  it 'tells nothing under noop, and nothing of what is no catalog of the node' do
    apply(noop: true)
    apply(host_config: false)
    expect(asked).to eq(%w[exec exec])
  end

  it 'refuses facts that are more than a value' do
    expect { type.new(name: 'x', facts: { 'a' => ['b'] }) }.to raise_error(Puppet::Error, %r{strings, numbers or booleans})
    expect { type.new(name: 'x', program: 'again-fleet') }.to raise_error(Puppet::Error, %r{not an absolute path})
  end
end
