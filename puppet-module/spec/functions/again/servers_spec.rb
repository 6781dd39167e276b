# frozen_string_literal: true

require 'spec_helper'
require 'support/servers'

describe 'common::again::servers' do
  include_context 'with servers'

  def certnames(*arguments)
    subject.execute(*arguments).map { |server| server['certname'] }
  end

  context 'with an inventory' do
    let(:inventory) { good_inventory }

    it 'takes expressions, and comparisons by their parts' do
      expect(certnames(['role=node', ['load', '>', '10']])).to eq(%w[web1.test])
      expect(certnames(['role=node'], 'test')).to eq(%w[web3.test])
      expect(certnames([['role', '==', Servers::NASTY]])).to eq(%w[bad.test])
    end
  end

  it('refuses a comparison of nothing') { is_expected.to run.with_params([]).and_raise_error(ArgumentError) }

  context 'with PuppetDB' do
    let(:puppetdb) { Servers::PuppetDB.new }

    it 'asks each question once in a compilation' do
      2.times { certnames(['role=node']) }
      certnames(['role=haproxy'])
      expect(puppetdb.queries.length).to eq(2)
    end
  end

  context 'with a PuppetDB that fails' do
    let(:calls) { [] }
    let(:puppetdb) { ->(_, query) { (calls << query) && raise(Puppet::Error, 'down') } }
    let(:fallback) { 'empty' }

    it 'asks it once in a compilation, and warns once' do
      3.times { |number| certnames(["load=#{number}"]) }
      expect([calls.length, warnings.length]).to eq([1, 1])
    end
  end

  context 'with a PuppetDB that gets slower' do
    let(:limits) { [] }
    let(:puppetdb) { ->(*) { [] } }
    let(:fallback) { 'empty' }

    it 'gives it 20 s for all questions of a compilation together' do
      times = [0.0, 12.0, 100.0, 107.5, 200.0, 201.0]
      allow(Process).to receive(:clock_gettime).and_call_original
      allow(Process).to receive(:clock_gettime).with(Process::CLOCK_MONOTONIC) { times.shift }
      allow(Timeout).to receive(:timeout) { |seconds, &block| (seconds > 0.5) ? (limits << seconds) && block.call : raise(Timeout::Error) }
      4.times { |number| certnames(["load=#{number}"]) }
      expect(limits).to eq([20.0, 8.0])
      expect(warnings).to match([%r{took longer than 20 s; no server is found\z}])
    end
  end

  context 'with an inventory that hangs' do
    let(:inventory) { 'exec sleep 60' }

    it 'gives it a bounded time' do
      File.write("#{@dir}/timeout", "#!/bin/sh\n[ \"$*\" = \"-k 2 10 #{@dir}/again-fleet nodes --json\" ] && shift 3 && exec /usr/bin/timeout 0.2 \"$@\"\n")
      File.chmod(0o755, "#{@dir}/timeout")
      Puppet::Util.withenv('PATH' => "#{@dir}:#{ENV.fetch('PATH')}") do
        is_expected.to run.with_params(['role=node']).and_raise_error(Puppet::Error, %r{'again-fleet nodes' took longer than 10 s})
      end
    end
  end

  # As in a server, which compiles for all environments in one process.
  context 'with two environments in one process' do
    def message(environment)
      node = Puppet::Node.new('node.test', environment: environment)
      node.merge({})
      Puppet.override(current_environment: environment, loaders: Puppet::Pops::Loaders.new(environment)) { Puppet::Parser::Compiler.compile(node) }
      nil
    rescue Puppet::Error => e
      e.message[%r{the inventory \w+}]
    end

    def site(name, says)
      modules = "#{@dir}/#{name}"
      FileUtils.mkdir_p("#{modules}/#{MODULE_NAME}")
      FileUtils.cp_r("#{ROOT}/lib", "#{modules}/#{MODULE_NAME}/lib")
      FileUtils.cp("#{ROOT}/metadata.json", "#{modules}/#{MODULE_NAME}/metadata.json")
      Dir.glob("#{modules}/**/*.rb").each { |file| File.write(file, File.read(file).gsub('the inventory of', "the inventory #{says}")) }
      File.write("#{@dir}/#{name}.pp", "servers_with_role('node')\n")
      Puppet::Node::Environment.create(name, [modules], "#{@dir}/#{name}.pp")
    end

    it 'has in each what that environment has' do
      all = %w[production branch].map { |name| site(name.to_sym, name) }
      expect([*all, *all].map { |one| message(one) }).to eq(['the inventory production', 'the inventory branch'] * 2)
    end
  end
end
