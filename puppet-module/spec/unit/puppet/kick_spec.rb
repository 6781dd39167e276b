# frozen_string_literal: true

require 'spec_helper'

$LOAD_PATH.unshift File.expand_path('../../../lib', __dir__)
require 'puppet/reports'

describe 'the report processor kick' do
  let(:scratch) { Dir.mktmpdir('kick') }
  let(:program) { "#{scratch}/again-fleet" }
  let(:messages) { [] }
  let(:job) { nil }

  before do
    Puppet[:vardir] = scratch
    Puppet[:statedir] = scratch
    stub_program("again-fleet: delivered to etcd for 1 node: lb1 (id 0)\n")
  end

  after do
    Puppet::Util::Log.close_all
    FileUtils.remove_entry(scratch)
  end

  # It writes down its arguments, a line for each time.
  def stub_program(says, status = 0)
    File.write("#{scratch}/says", says)
    File.write(program, "#!/bin/sh\n(IFS='|'; echo \"$*\" >>#{scratch}/asked)\ncat #{scratch}/says\nexit #{status}\n")
    File.chmod(0o755, program)
  end

  def asked
    File.exist?("#{scratch}/asked") ? File.readlines("#{scratch}/asked", chomp: true) : []
  end

  def resource(type, name, **more)
    Puppet::Type.type(type).new(name: name, **more)
  end

  def kick(wish)
    resource(:notify, "kick -> #{wish}")
  end

  def change
    resource(:file, "#{scratch}/changed", ensure: 'file', content: 'x')
  end

  # Applies a catalog of these, and has its report processed as `puppet apply` does, or a server, which reads it from the wire.
  def process(*resources, on: :user, noop: false, &block)
    Puppet[:noop] = noop
    catalog = Puppet::Resource::Catalog.new('web1.test', Puppet::Node::Environment.create(:shop, []))
    catalog.host_config = true
    catalog.add_resource(*resources)
    report = Puppet::Transaction::Report.new(nil, 'shop', 'uuid', job)
    report.host = 'web1.test'
    catalog.apply(report: report)
    report.finalize_report
    report = Puppet::Transaction::Report.convert_from(:json, report.render(:json)) unless on == :user
    Puppet::Util::Log.newdestination(Puppet::Test::LogCollector.new(messages))
    allow(Puppet).to receive(:run_mode).and_return(Puppet::Util::RunMode[on])
    report.extend(Puppet::Reports.report(:kick))
    block&.call(report)
    Puppet::Util.withenv('PATH' => "#{scratch}:#{ENV.fetch('PATH')}") { report.process }
  end

  def lines(level)
    messages.select { |message| message.level == level }.map(&:message)
  end

  {
    'haproxy' => '--where=role=haproxy|--environment=shop',
    'web front $(x) "y"' => '--where=role=web front $(x) "y"|--environment=shop',
    'class:profile::lb' => '--class=profile::lb|--environment=shop',
    'class:::Profile::LB' => '--class=profile::lb|--environment=shop',
    'host:LB01.example.com' => '--to=lb01.example.com',
  }.each do |wish, selection|
    it "asks for #{wish}" do
      process(change, kick(wish))
      expect(asked).to eq(["trigger|--name=kick -> #{wish} (web1.test)|#{selection}|--for=web1.test"])
      expect(lines(:notice)).to eq(["kick -> #{wish}: again-fleet: delivered to etcd for 1 node: lb1 (id 0)"])
      expect(lines(:err)).to eq([])
    end
  end

  ['~x', '=x', '/x/', "a\tb", 'class:a b', 'host:a b', 'host:'].each do |wish|
    it "says that #{wish.inspect} is nothing to ask for" do
      process(change, kick(wish))
      expect(asked).to eq([])
      expect(lines(:err)).to match([%r{\Akick: 'kick -> .*' of web1.test is not passed on: it names no role, class: or host:\z}])
    end
  end

  it 'asks for each of several once, and for nothing that is no kick' do
    process(change, kick('b'), kick('a'), resource(:notify, 'kick->a'), resource(:notify, 'kicked -> c'), resource(:notify, 'x', message: 'kick -> d'))
    expect(asked.map { |line| line[%r{role=(\w+)}, 1] }).to eq(%w[a b])
  end

  it 'asks for sixteen of many, and names the rest' do
    process(change, *(1..20).map { |n| kick(format('r%02d', n)) })
    expect(asked.length).to eq(16)
    expect(lines(:err)).to eq(['kick: what web1.test asks for after the 16th is not passed on: there are 20'])
  end

  it 'asks for nothing where nothing else has changed' do
    process(kick('haproxy'), resource(:notify, 'hello'))
    expect(asked).to eq([])
  end

  it 'takes a refresh for a change, but not that of a trigger' do
    trigger = resource(:trigger, 'x', hosts: 'a', provider: 'dummy')
    process(kick('haproxy'), resource(:notify, 'n', notify: 'Trigger[x]'), trigger)
    expect(asked).to eq([])
    process(kick('haproxy'), resource(:notify, 'n', notify: 'Exec[/bin/true]'), resource(:exec, '/bin/true', refreshonly: true))
    expect(asked.length).to eq(1)
  end

  it 'asks for nothing under noop, nor for a notify under noop' do
    process(change, kick('haproxy'), noop: true)
    process(change, resource(:notify, 'kick -> lb', noop: true))
    process(resource(:exec, '/bin/true', noop: false), resource(:notify, 'kick -> lb', noop: false), noop: true)
    expect(asked).to eq([])
  end

  it 'asks for nothing where what the notify requires has failed' do
    process(change, resource(:exec, '/bin/false', before: 'Notify[kick -> haproxy]'), kick('haproxy'))
    expect(asked).to eq([])
  end

  it 'asks all the same where something else has failed' do
    process(change, resource(:exec, '/bin/false'), kick('haproxy'))
    expect(asked.length).to eq(1)
  end

  context 'on a server' do
    let(:job) { '0123456789abcdef//00000000000000000000000000000001/kick/lb1' }

    it 'hands over the job, by which the way of the run is known' do
      process(change, kick('haproxy'), on: :server)
      expect(asked).to eq(["trigger|--name=kick -> haproxy (web1.test)|--where=role=haproxy|--environment=shop|--for=web1.test|--job-id=#{job}"])
    end
  end

  it 'hands over that there is no job on a server' do
    process(change, kick('haproxy'), on: :server)
    expect(asked).to match([a_string_ending_with('|--for=web1.test|--job-id=')])
  end

  it 'makes a name of any kick' do
    process(change, kick('é' * 60))
    expect(asked).to match([%r{\Atrigger\|--name=kick [0-9a-f]{64}\|}])
  end

  it 'says in one line that it is not passed on' do
    stub_program("again-fleet: warning: x\nagain-fleet: error: the service does not run\n", 1)
    process(change, kick('haproxy'), kick('x'))
    expect(lines(:err)).to eq(%w[haproxy x].map { |role| "kick: 'kick -> #{role}' of web1.test is not passed on: again-fleet: error: the service does not run" })
  end

  it 'says in one line that there is no program' do
    process_without = -> { process(change, kick('haproxy')) }
    allow(Puppet::Util).to receive(:which).with(%r{again-fleet\z}).and_return(nil)
    process_without.call
    expect(lines(:err)).to match([%r{is not passed on: there is no program again-fleet}])
  end

  it 'holds up a report for a bounded time, however many it asks for' do
    times = [0.0, 1.2, 14.5, 15.0]
    asked_for = []
    process(change, kick('a'), kick('b'), kick('c')) do |report|
      allow(report).to receive(:now) { times.shift }
      allow(report).to receive(:run) { |_, seconds| (asked_for << seconds) && ['', "took longer than #{seconds} s"] }
    end
    expect(asked_for).to eq([14, 1])
    expect(lines(:err)).to match([%r{'kick -> a' .* took longer than 14 s}, %r{'kick -> b' .* took longer than 1 s}, %r{'kick -> c' .* those before it took too long}])
  end

  it 'never raises' do
    process(change, kick('haproxy')) { |report| allow(report).to receive(:run).and_raise(Errno::ENOMEM) }
    expect(lines(:err)).to match([%r{is not passed on: Cannot allocate memory}])
  end
end
