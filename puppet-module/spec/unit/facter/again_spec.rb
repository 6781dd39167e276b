# frozen_string_literal: true

require 'spec_helper'
require 'facter'

describe 'the fact again' do
  let(:scratch) { Dir.mktmpdir('again-fact') }
  let(:helper) { "#{scratch}/again" }

  before { Facter.clear }

  after do
    Facter.clear
    FileUtils.remove_entry(scratch)
  end

  def with_helper(script)
    File.write(helper, "#!/bin/sh\n#{script}\n")
    File.chmod(0o755, helper)
    allow(ENV).to receive(:[]).and_call_original
    allow(ENV).to receive(:[]).with('AGAIN_BIN').and_return(helper)
  end

  def fact
    load File.expand_path('../../../lib/facter/again.rb', __dir__)
    AgainFact.value
  end

  def says(status)
    File.write("#{scratch}/status", JSON.generate(status))
    with_helper("test \"$*\" = 'status --json --this-run' || exit 9; cat #{scratch}/status; exit 3")
  end

  let(:nothing) { { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false } }
  let(:status) do
    {
      'schema' => 1, 'version' => '0.1.0', 'disabled' => nil,
      'this_run' => { 'target' => 't2', 'chain' => 'c', 'run' => 3, 'timer' => 'again' },
      'targets' => [
        { 'id' => 't1', 'cap' => { 'used' => 9 }, 'timers' => [{ 'name' => 'not mine' }] },
        { 'id' => 't2', 'cap' => { 'used' => 2, 'max_runs' => 10, 'window_seconds' => 3600, 'frees_at' => nil },
          'timers' => [
            { 'name' => 'peers', 'state' => 'waiting for the run', 'run' => 4, 'chain' => 'c', 'delta_seconds' => 120, 'jitter_seconds' => 1.2,
              'requested_at' => '2026-11-21T01:02:03Z', 'due_at' => nil, 'due_in_seconds' => 7, 'waiter' => { 'pid' => 1, 'alive' => true }, },
          ], },
      ],
    }
  end

  it 'takes the run, and cap and pending of its target, from the helper' do
    says(status)
    expect(fact).to include(
      'version' => '0.1.0', 'run' => 3, 'chain' => 'c', 'timer' => 'again', 'disabled' => false,
      'cap' => { 'used' => 2, 'max_runs' => 10, 'window_seconds' => 3600 },
      'pending' => {
        'peers' => { 'state' => 'waiting for the run', 'run' => 4, 'chain' => 'c', 'delta_seconds' => 120, 'requested_at' => '2026-11-21T01:02:03Z' },
      }
    )
  end

  it 'leaves out what is not there, because Puppet makes an empty string of nil' do
    says(status.merge('this_run' => { 'target' => 'new', 'chain' => nil, 'run' => 1, 'timer' => nil }))
    expect(fact.keys).not_to include('chain', 'timer')
    expect(fact).to include(nothing)
  end

  it 'says why it is disabled' do
    says(status.merge('disabled' => { 'reason' => 'change freeze', 'since' => 'x' }))
    expect(fact['disabled']).to eq('reason' => 'change freeze', 'since' => 'x')
  end

  it 'is whole outside of a run' do
    says(status.merge('this_run' => nil))
    expect(fact).to include(nothing.merge('version' => '0.1.0'))
  end

  it 'reads no schema that it does not know' do
    says(status.merge('schema' => 2))
    expect(fact).to include(nothing.merge('version' => '0.1.0', 'run' => 0, 'unknown' => "the helper's status has schema 2"))
  end

  {
    'no helper'        => nil,
    'silence'          => 'true',
    'no JSON'          => 'echo again',
    'half of it'       => %q(printf '{"schema":1,'),
    'another JSON'     => 'echo "[1]"',
    'odd values'       => %q(echo '{"schema":1,"version":1,"this_run":{"target":1,"run":2},"targets":[7,{"id":1,"timers":7}]}'),
    'bytes'            => %q(printf '\377\376'),
    'a failure'        => 'echo oops >&2; exit 1',
    'death'            => 'kill -9 $$',
    'more than enough' => 'yes',
    'no interpreter'   => "\n",
  }.each do |what, script|
    it "is whole with #{what} from the helper" do
      script ? with_helper(script) : (allow(ENV).to receive(:[]).and_call_original)
      File.write(helper, "#!/nonexistent\n") if what == 'no interpreter'
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      expect(fact).to include(nothing.merge('run' => (what == 'no helper') ? 1 : 0))
      expect(fact.key?('unknown')).to be(what != 'no helper')
      expect(fact['paths'].keys).to match_array(PATHS.keys)
      expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 30
    end
  end

  it 'does not wait for a helper that hangs' do
    with_helper('exec sleep 60')
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect(fact).to include('run' => 0, 'unknown' => %r{takes too long})
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be_between(9.9, 50)
  end

  it 'has the agent\'s paths, with what puppet.conf says under [agent]' do
    Puppet.settings.parse_config("[main]\nstatedir = /m\nrundir = /r\n[agent]\nagent_disabled_lockfile = /a/disabled\n[user]\nlastrunfile = /u/summary\n")
    expect(fact['paths']).to eq(
      'agent_catalog_run_lockfile' => '/m/agent_catalog_run.lock', 'agent_disabled_lockfile' => '/a/disabled',
      'lastrunfile' => '/u/summary', 'pidfile' => '/r/agent.pid'
    )
  end

  it 'finds the helper where the class says it is' do
    with_helper('true')
    config = "#{scratch}/again.toml"
    File.write(config, "# Written by Puppet\n# binary: #{helper}\nmax_runs = 3\n")
    allow(ENV).to receive(:[]).with('AGAIN_BIN').and_return(nil)
    allow(ENV).to receive(:[]).with('AGAIN_CONFIG').and_return(config)
    fact
    expect(AgainFact.binary).to eq(helper)
  end

  it 'is a fact' do
    says(status)
    load File.expand_path('../../../lib/facter/again.rb', __dir__)
    expect(Facter.value(:again)).to include('run' => 3)
  end

  it 'understands a helper from before --this-run' do
    says(status)
    with_helper("test \"$*\" = 'status --json' || exit 2; cat #{scratch}/status")
    expect(fact).to include('run' => 3)
  end

  it 'does not take a record that cannot be read for nothing' do
    says(status.merge('targets' => [], 'unreadable' => ['the record x cannot be used']))
    expect(fact).to include('run' => 3, 'unknown' => 'the record x cannot be used')
  end

  it 'does not tell where root is at home' do
    allow(Process).to receive(:euid).and_return(0)
    expect(fact).not_to have_key('home')
  end

  context 'when Puppet does not run as root' do
    before do
      allow(Process).to receive(:euid).and_return(4711)
      allow(Etc).to receive(:getpwuid).with(4711).and_return(instance_double(Etc::Passwd, dir: scratch))
      allow(ENV).to receive(:[]).and_call_original
      allow(ENV).to receive(:[]).with('AGAIN_BIN').and_return(nil)
      allow(ENV).to receive(:[]).with('AGAIN_CONFIG').and_return(nil)
    end

    def install(path, script)
      FileUtils.mkdir_p(File.dirname(path))
      File.write(path, script)
      File.chmod(0o755, path)
    end

    it 'tells where the user is at home' do
      expect(fact['home']).to eq(scratch)
    end

    it 'takes HOME where the user database does not know the user' do
      allow(Etc).to receive(:getpwuid).and_raise(ArgumentError)
      allow(ENV).to receive(:[]).with('HOME').and_return('/h')
      expect(fact['home']).to eq('/h')
    end

    it 'asks the helper in the home directory' do
      install("#{scratch}/.local/bin/again", "#!/bin/sh\ntest \"$*\" = 'status --json --this-run' || exit 9; echo '{\"schema\":1,\"version\":\"8\"}'\n")
      expect(fact['version']).to eq('8')
    end

    it 'asks it with the settings there' do
      install("#{scratch}/.config/again.toml", "# binary: #{scratch}/b/again\n")
      install("#{scratch}/b/again", "#!/bin/sh\necho \"{\\\"schema\\\":1,\\\"version\\\":\\\"$4\\\"}\"\n")
      expect(fact['version']).to eq("--config=#{scratch}/.config/again.toml")
    end
  end
end
