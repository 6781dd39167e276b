# frozen_string_literal: true

require 'spec_helper'
require 'facter'
require 'json'
require 'puppet'
require 'tmpdir'

describe 'the fact again_fleet' do
  around do |example|
    Dir.mktmpdir do |dir|
      @dir = dir
      example.run
    end
  end

  before do
    Facter.clear
    ENV['AGAIN_FLEET_LOCKS_DIR'] = "#{@dir}/locks"
    allow(File).to receive(:exist?).and_call_original
    %i[hostcert hostprivkey localcacert hostcrl].each { |setting| allow(File).to receive(:exist?).with(Puppet[setting]).and_return(true) }
  end

  after do
    ENV.delete('AGAIN_FLEET_LOCKS_DIR')
    ENV.delete('AGAIN_FLEET_CONFIG')
    Facter.clear
  end

  let(:plain) do
    {
      'certname' => Puppet[:certname],
      'paths' => { 'cert' => Puppet[:hostcert], 'key' => Puppet[:hostprivkey], 'ca' => Puppet[:localcacert], 'crl' => Puppet[:hostcrl] },
    }
  end

  def fact
    load File.expand_path('../../../lib/facter/again_fleet.rb', __dir__)
    Facter.value(:again_fleet)
  end

  # A stand-in for the program, which notes its words, and a lock.
  def lock(name, text, status = 0)
    program = "#{@dir}/again-fleet"
    File.write("#{@dir}/text", text)
    File.write(program, "#!/bin/sh\necho \"$@\" >>#{@dir}/words\ncat #{@dir}/text\nexit #{status}\n")
    File.chmod(0o755, program)
    FileUtils.mkdir_p("#{@dir}/locks")
    File.write("#{@dir}/locks/#{name}.toml", "# binary: #{program}\nname = \"#{name}\"\ncandidates = [\"a\"]\n")
  end

  it 'tells the certname of this run, and where its certificates are' do
    expect(fact).to eq(plain)
  end

  it 'tells which of its certificates are missing' do
    allow(File).to receive(:exist?).with(Puppet[:hostcrl]).and_return(false)
    expect(fact).to eq(plain.merge('missing' => ['crl']))
  end

  it 'fails no run' do
    allow(Puppet).to receive(:[]).and_raise(Puppet::Error, 'no such setting')
    expect(fact).to be_nil
  end

  it 'tells who holds a lock' do
    held = { 'holder' => 'db2', 'token' => 7, 'since' => '2026-11-24T18:00:00Z', 'is_mine' => false, 'candidates' => %w[db1 db2], 'why' => nil }
    lock('db-master', JSON.generate('schema' => 1, 'locks' => { 'db-master' => held, 'other' => held }))
    expect(fact['locks']).to eq('db-master' => held.compact)
    expect(File.read("#{@dir}/words")).to eq("locks --own --json\n")
  end

  it 'tells no holder where nobody is certain' do
    held = { 'holder' => nil, 'token' => nil, 'since' => nil, 'is_mine' => false, 'candidates' => ['db1'], 'why' => 'nobody holds it' }
    lock('db-master', JSON.generate('schema' => 1, 'locks' => { 'db-master' => held }))
    expect(fact['locks']).to eq('db-master' => { 'is_mine' => false, 'candidates' => ['db1'], 'why' => 'nobody holds it' })
  end

  it 'finds the directory by the settings' do
    lock('a', '{}')
    ENV.delete('AGAIN_FLEET_LOCKS_DIR')
    ENV['AGAIN_FLEET_CONFIG'] = "#{@dir}/fleet.toml"
    File.write("#{@dir}/fleet.toml", "backend = \"etcd\"\nlocks_dir = \"#{@dir}/locks\"\n")
    expect(fact['locks'].keys).to eq(['a'])
    expect(File.read("#{@dir}/words")).to eq("locks --own --json\n")
  end

  {
    'a service that is away' => ['again-fleet: error: the service of this node cannot be asked', %r{cannot be asked}],
    'nonsense' => ['{"schema": 9', %r{.}],
    'another schema' => ['{"schema": 2, "locks": {}}', %r{does not tell of locks}],
    'a lock that it does not know' => ['{"schema": 1, "locks": {}}', %r{does not know this lock yet}],
    'nothing' => ['', %r{.}],
    'what is no text' => ["\xff\xfe", %r{.}],
  }.each do |what, (text, why)|
    it "makes nothing up of #{what}" do
      lock('db-master', text, 1)
      expect(fact).to match(plain.merge('locks' => { 'db-master' => { 'is_mine' => false, 'why' => why } }))
    end
  end

  it 'makes nothing up where there is no program' do
    lock('db-master', '')
    File.write("#{@dir}/locks/db-master.toml", "# binary: #{@dir}/none\nname = 'db-master'\n")
    allow(File).to receive(:executable?).and_return(false)
    expect(fact['locks']['db-master']).to eq('is_mine' => false, 'why' => 'there is no again-fleet on this node')
  end

  it 'waits for nobody' do
    lock('db-master', '')
    File.write("#{@dir}/again-fleet", "#!/bin/sh\nexec sleep 60\n")
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect(fact['locks']['db-master']['why']).to match(%r{takes too long})
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - began).to be < 50
  end
end
