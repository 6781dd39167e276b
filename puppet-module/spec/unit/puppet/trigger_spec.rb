# frozen_string_literal: true

require 'spec_helper'

$LOAD_PATH.unshift File.expand_path('../../../lib', __dir__)

describe 'the type trigger' do
  let(:type) { Puppet::Type.type(:trigger) }
  let(:scratch) { Dir.mktmpdir('trigger') }
  let(:asked) { "#{scratch}/asked" }
  let(:program) { "#{scratch}/again-fleet" }
  let(:messages) { [] }

  before do
    Puppet[:vardir] = scratch
    Puppet[:statedir] = scratch
    Puppet::Util::Log.newdestination(Puppet::Test::LogCollector.new(messages))
    stub_program('again-fleet: delivered to etcd for 1 node: lb1 (id 0)')
  end

  after do
    Puppet::Util::Log.close_all
    FileUtils.remove_entry(scratch)
  end

  # It writes down its arguments, one to a line.
  def stub_program(line, status = 0)
    File.write(program, "#!/bin/sh\nprintf '%s\\n' \"$@\" >> #{asked}\necho '#{line}'\nexit #{status}\n")
    File.chmod(0o755, program)
  end

  def notifier(status = 0)
    Puppet::Type.type(:exec).new(name: "/bin/sh -c 'exit #{status}'", notify: 'Trigger[refresh load balancers]')
  end

  # Applies a catalog in which something notifies the trigger, and returns the status of the trigger.
  def fire(by: notifier, noop: false, and_then: nil, trigger: nil, **more)
    trigger ||= type.new(name: 'refresh load balancers', **more)
    trigger[:noop] = true if noop
    catalog = Puppet::Resource::Catalog.new
    catalog.add_resource(*[by, trigger, and_then].compact)
    catalog.host_config = true
    path = "#{scratch}:#{ENV.fetch('PATH')}"
    report = Puppet::Util.withenv('PATH' => path) { catalog.apply.report }
    report.resource_statuses[trigger.to_s]
  end

  def arguments
    File.exist?(asked) ? File.readlines(asked, chomp: true) : []
  end

  def lines(level)
    messages.select { |message| message.level == level && message.source.include?('Trigger') }.map(&:message)
  end

  describe 'refuses' do
    {
      'nobody' => [{}, %r{nothing says which nodes}],
      'a host that is no certname' => [{ hosts: 'a b' }, %r{"a b" is not a certname}],
      'a hash without a certname' => [{ hosts: [{ 'title' => 'a', 'type' => 'b' }] }, %r{a hash with the keys \["title", "type"\] names no node}],
      'a hash without keys' => [{ hosts: [{}] }, %r{a hash with the keys \[\] names no node}],
      'a hash with an invalid certname' => [{ hosts: [{ 'certname' => 'a b' }] }, %r{"a b" is not a certname}],
      'a host that is an option' => [{ hosts: ['a', '--wait=x y'] }, %r{is not a certname}],
      'a selection by no fact' => [{ where: {} }, %r{selects by no fact}],
      'a selection by a fact that is an expression' => [{ where: { 'a>b' => 'c' } }, %r{selects by no fact}],
      'a selection by half an expression' => [{ where: 'uptime' }, %r{"uptime" selects by no fact}],
      'a class that is none' => [{ class: 'profile lb' }, %r{"profile lb" is not the name of a class}],
      'an environment that is none' => [{ environment: 'a/b' }, %r{"a/b" is not the name of an environment}],
      'a delta that is no duration' => [{ hosts: 'a', delta: 'soon' }, %r{"soon" is not a duration}],
      'a delta that the program does not read' => [{ hosts: 'a', delta: '1.5' }, %r{"1.5" is not a duration}],
      'a rolling run over NATS' => [{ hosts: 'a', parallel: 5, provider: :nats }, %r{parallel needs etcd}],
      'a stop without a rolling run' => [{ hosts: 'a', stop_after_failures: 2 }, %r{stop_after_failures needs parallel}],
      'a stop after no failure' => [{ hosts: 'a', parallel: 2, stop_after_failures: 0 }, %r{0 is not a number of nodes}],
      'a rolling run by another program' => [
        { hosts: 'a', parallel: 5, stop_after_failures: 2, provider: :command, command: ['/bin/echo', '%{hosts}'] },
        %r{the provider command knows hosts only, not parallel, stop_after_failures},
      ],
      'a ttl that is no duration' => [{ hosts: 'a', ttl: -1 }, %r{-1 is not a duration}],
      'none at once' => [{ hosts: 'a', parallel: 0 }, %r{0 is not a number of nodes}],
      'a provider command without a command' => [{ hosts: 'a', provider: :command }, %r{needs a command}],
      'a command for a backend' => [{ hosts: 'a', command: ['/bin/echo', '%{hosts}'] }, %r{a command needs provider => command}],
      'a command by its name alone' => [{ hosts: 'a', provider: :command, command: ['mco', '%{hosts}'] }, %r{has to begin with an absolute path}],
      'a command that names no host' => [{ hosts: 'a', provider: :command, command: ['/bin/echo'] }, %r{neither %\{host\} nor %\{hosts\}}],
      'what the provider command cannot do' => [
        { hosts: 'a', where: { 'role' => 'x' }, wait: true, provider: :command, command: ['/bin/echo', '%{hosts}'] },
        %r{the provider command knows hosts only, not where, wait},
      ],
    }.each do |what, (parameters, message)|
      it what do
        expect { type.new(name: 'x', **parameters) }.to raise_error(Puppet::Error, message)
      end
    end

    it 'a name with a line break, or too long a one' do
      expect { type.new(name: "x\ny", hosts: 'a') }.to raise_error(Puppet::Error, %r{printable})
      expect { type.new(name: 'é' * 65, hosts: 'a') }.to raise_error(Puppet::Error, %r{128 bytes})
      expect(type.new(name: 'é' * 64, hosts: 'a')[:name]).to eq('é' * 64)
    end
  end

  it 'takes a string, an array and an array of arrays for hosts' do
    hosts = ->(value) { type.new(name: 'x', hosts: value)[:hosts] }
    expect(hosts.call('LB1.example.com')).to eq(['lb1.example.com'])
    expect(hosts.call(%w[b a a])).to eq(%w[a b])
    expect(hosts.call([['b'], 'a'])).to eq(%w[a b])
    expect(hosts.call([])).to eq([])
  end

  it 'takes the rows that a query of PuppetDB finds for hosts' do
    hosts = ->(value) { type.new(name: 'x', hosts: value)[:hosts] }
    expect(hosts.call([{ 'certname' => 'b' }, { 'certname' => 'A', 'deactivated' => nil }])).to eq(%w[a b])
    expect(hosts.call({ 'fqdn' => 'a' })).to eq(%w[a])
    expect(hosts.call([[{ 'certname' => 'b' }], 'a'])).to eq(%w[a b])
  end

  it 'does nothing when nothing notifies it' do
    status = fire(by: nil, hosts: 'lb1')
    expect(arguments).to be_empty
    expect(status).to have_attributes(changed?: false, failed?: false)
  end

  it 'does nothing under noop' do
    fire(hosts: 'lb1', noop: true)
    expect(arguments).to be_empty
  end

  it 'does nothing when the notifying resource failed' do
    fire(by: notifier(1), hosts: 'lb1')
    expect(arguments).to be_empty
  end

  it 'fires over etcd, unless another provider is named' do
    fire(hosts: %w[lb2 lb1])
    expect(arguments).to eq(
      ['trigger', '--backend=etcd', '--name=refresh load balancers', '--to=lb1', '--to=lb2'],
    )
    expect(lines(:notice)).to include('again-fleet: delivered to etcd for 1 node: lb1 (id 0)')
  end

  it 'hands over every parameter' do
    fire(hosts: 'lb1', delta: 30, ttl: '2h', wait: true, provider: :nats)
    expect(arguments).to eq(
      ['trigger', '--backend=nats', '--name=refresh load balancers', '--to=lb1', '--delta=30', '--ttl=2h', '--wait'],
    )
  end

  it 'asks for a rolling run' do
    fire(where: 'role=shop', parallel: '5', stop_after_failures: 2)
    expect(arguments).to eq(
      ['trigger', '--backend=etcd', '--name=refresh load balancers', '--where=role=shop', '--parallel=5', '--stop-after-failures=2'],
    )
  end

  it 'has nodes selected' do
    fire(where: { 'role' => 'lb', 'load' => 2 }, class: ['Profile::Lb', '::x'], environment: 'production')
    expect(arguments).to eq(
      ['trigger', '--backend=etcd', '--name=refresh load balancers', '--where=role=lb', '--where=load=2', '--class=profile::lb', '--class=x', '--environment=production'],
    )
  end

  it 'does not take a value for an expression' do
    fire(where: { 'role' => '~^lb' })
    expect(arguments).to include('--where=role= ~^lb')
  end

  it 'has nodes selected besides those that are named' do
    fire(hosts: [], where: ['uptime>10', 'hostname=~^web'])
    expect(arguments).to eq(['trigger', '--backend=etcd', '--name=refresh load balancers', '--where=uptime>10', '--where=hostname=~^web'])
  end

  describe 'with after_run' do
    # What comes after the trigger, and writes down when.
    def last
      Puppet::Type.type(:exec).new(name: "/bin/sh -c 'echo last >> #{asked}'", require: 'Trigger[refresh load balancers]')
    end

    it 'fires when everything else is applied' do
      fire(hosts: 'lb1', after_run: true, and_then: last)
      expect(arguments).to eq(['last', 'trigger', '--backend=etcd', '--name=refresh load balancers', '--to=lb1'])
      expect(lines(:notice)).to include('again-fleet: delivered to etcd for 1 node: lb1 (id 0)')
    end

    it 'fires once for each run' do
      2.times { fire(hosts: 'lb1', after_run: true, and_then: last) }
      expect(arguments.count('trigger')).to eq(2)
    end

    it 'fails in the report when it could neither be sent nor kept' do
      stub_program('again-fleet: error: the outbox is full', 1)
      status = fire(hosts: 'lb1', after_run: true)
      expect(status).to have_attributes(failed?: true)
      expect(lines(:err)).to include(a_string_including('again-fleet: error: the outbox is full'))
    end
  end

  it 'fires for nobody, and says so' do
    fire(hosts: [])
    expect(arguments).to be_empty
    expect(lines(:notice)).to include('nobody to start Puppet on: hosts is empty')
  end

  it 'fails when the trigger could neither be sent nor kept' do
    stub_program('again-fleet: error: the outbox is full', 1)
    status = fire(hosts: 'lb1')
    expect(status).to have_attributes(failed_to_restart?: true)
    expect(lines(:err)).to include(a_string_including('again-fleet: error: the outbox is full'))
  end

  it 'logs arrows as they are also in a run whose locale has none' do
    line = 'again-fleet: error: over 3 hops: lb1 → web1 → lb1 …'
    stub_program(line, 1)
    locale = Encoding.default_external
    verbose, $VERBOSE = $VERBOSE, nil
    begin
      Encoding.default_external = Encoding::US_ASCII
      fire(hosts: 'lb1')
    ensure
      Encoding.default_external = locale
      $VERBOSE = verbose
    end
    expect(lines(:err)).to include(a_string_including(line))
  end

  it 'fails, and says what is missing, where the program is not installed' do
    File.delete(program)
    status = fire(hosts: 'lb1')
    expect(status).to have_attributes(failed_to_restart?: true)
    expect(lines(:err)).to include(a_string_including('there is no program again-fleet on this node'))
  end

  %w[Linux FreeBSD windows].each do |kernel|
    describe "on #{kernel}" do
      around do |example|
        type.instance_variable_set(:@defaultprovider, nil)
        example.run
        type.instance_variable_set(:@defaultprovider, nil)
      end

      it 'has one default provider' do
        allow(Puppet.runtime[:facter]).to receive(:value).and_call_original
        allow(Puppet.runtime[:facter]).to receive(:value).with(:kernel).and_return(kernel)
        expect(type.new(name: 'x', hosts: 'a').provider.class.name).to eq(:etcd)
        expect(messages.map(&:message)).to eq([])
      end
    end
  end

  describe 'with the provider command' do
    it 'runs the command once for all hosts' do
      fire(hosts: %w[a b], provider: :command, command: [program, 'run', '--targets', '%{hosts}'])
      expect(arguments).to eq(['run', '--targets', 'a,b'])
    end

    it 'runs the command once for each host' do
      fire(hosts: %w[a b], provider: :command, command: [program, '-I', '%{host}'])
      expect(arguments).to eq(['-I', 'a', '-I', 'b'])
    end

    sensitive = ->(value) { Puppet::Pops::Types::PSensitiveType::Sensitive.new(value) }
    {
      'a Sensitive command' => ->(words) { sensitive.call(words) },
      'a command of which a word is Sensitive' => ->(words) { words.map { |word| (word == 'pass') ? sensitive.call(word) : word } },
    }.each do |what, hidden|
      it "never prints #{what}" do
        stub_program('pass is wrong', 3)
        # As a catalog hands it over.
        trigger = Puppet::Resource.new(:trigger, 'refresh load balancers')
        command = hidden.call([program, 'pass', '%{hosts}'])
        trigger[:hosts] = 'a'
        trigger[:provider] = 'command'
        trigger[:command] = command.is_a?(Array) ? command : command.unwrap
        trigger.sensitive_parameters = command.is_a?(Array) ? [] : [:command]
        Puppet[:log_level] = :debug
        status = fire(trigger: trigger.to_ral)
        expect(arguments).to eq(%w[pass a])
        expect(status.failed).to be true
        expect(lines(:err).join).to include('[command redacted] ended with 3')
        expect(lines(:notice)).to include('[output redacted]')
        expect(messages.map(&:message).join).not_to match(%r{pass })
        expect(messages.map(&:message).grep(%r{Unable to mark})).to eq([])
      end
    end

    it 'does not print a Sensitive command that it refuses' do
      expect { type.new(name: 'x', hosts: 'a', provider: :command, command: ['pass', '%{hosts}']) }.to raise_error { |e| expect(e.message).not_to include('pass') }
    end

    it 'fails, and names the command and its status, but runs the rest' do
      stub_program('no route', 3)
      status = fire(hosts: %w[a b], provider: :command, command: [program, '%{host}'])
      expect(arguments).to eq(%w[a b])
      expect(status).to have_attributes(failed_to_restart?: true)
      expect(lines(:err)).to include(a_string_including("#{program} a ended with 3; #{program} b ended with 3"))
    end

    it 'runs nothing for nobody, and says so' do
      fire(hosts: [], provider: :command, command: [program, '%{hosts}'])
      expect(arguments).to be_empty
      expect(lines(:notice)).to include(a_string_including('hosts is empty'))
    end
  end

  it 'says with the dummy what it would have done' do
    fire(hosts: 'lb1', class: 'profile::lb', provider: :dummy)
    expect(arguments).to be_empty
    expect(lines(:notice)).to include('the dummy starts nothing; it was to start Puppet on hosts lb1; class profile::lb')
  end
end
