# frozen_string_literal: true

require 'spec_helper'
require_relative '../support/servers'

describe 'servers_with_role' do
  include_context 'with servers'

  def certnames(*arguments)
    subject.execute(*arguments).map { |server| server['certname'] }
  end

  nasty = ["x' y", 'a\\', '"]', '/web/', "role = 'x' or true", 'web*', '', Servers::NASTY]

  shared_examples 'finds by role' do
    it 'all servers, in the order of their certnames' do
      expect(certnames('node')).to eq(%w[web1.test web2.test web3.test])
      expect(certnames('node', 'production')).to eq(%w[web1.test web2.test])
      expect(certnames('node', 'x"y')).to eq([])
      expect(warnings).to eq([])
    end

    it 'and takes a role by its letter' do
      expect(nasty.reject(&:empty?).map { |role| certnames(role) }).to eq(([[]] * 6) + [%w[bad.test]])
    end

    it 'with flat names of facts' do
      web1, _, web3 = subject.execute('node')
      expect(web1).to include('certname' => 'web1.test', 'hostname' => 'web1', 'ipaddress' => '10.0.0.1', 'fqdn' => 'web1.test', 'role' => 'node')
      expect(web1['networking']).to include('ip' => '10.0.0.1')
      expect(web3).to include('hostname' => 'old')
      expect(web3).not_to include('ipaddress')
    end
  end

  Servers.databases.each do |name, database|
    context "with #{name}" do
      let(:puppetdb) { database.call }

      it_behaves_like 'finds by role'

      it 'with one narrow query' do
        before = puppetdb.queries.length
        certnames('node', 'test')
        wanted = ['and', ['=', 'environment', 'test'], ['=', 'facts.role', 'node']]
        expect(puppetdb.queries.drop(before)).to eq([['from', 'inventory', ['extract', %w[certname environment facts], wanted]]])
      end
    end
  end

  context 'with the inventory' do
    let(:inventory) { good_inventory }

    it_behaves_like 'finds by role'
  end

  {
    'is down' => ->(*) { raise Puppet::Error, "Failed to execute '/pdb/query/v4' on at least 1 of the following 'server_urls'" },
    'is wrong' => ->(*) { { 'error' => 'no' } },
    'answers by half' => ->(*) { [{ 'certname' => 'web1.test' }] },
    'is broken' => ->(*) { raise LoadError, "cannot load\nsuch file" },
    'hangs' => ->(*) { Timeout.timeout(0.01) { sleep } },
  }.each do |what, puppetdb|
    context "where PuppetDB #{what}" do
      let(:puppetdb) { puppetdb }

      context 'and there is an inventory' do
        let(:inventory) { good_inventory }

        it 'takes that, with one warning' do
          expect(certnames('node')).to eq(%w[web1.test web2.test web3.test])
          expect(warnings).to match([%r{\APuppetDB cannot tell which servers there are: .+; they come from the inventory of again-fleet\z}])
        end
      end

      it 'finds nobody where there is no inventory either, with one warning' do
        expect(certnames('node')).to eq([])
        expect(warnings).to match([%r{\APuppetDB cannot tell .+, and nor can the inventory of again-fleet: there is no program .+; no server is found\z}])
      end
    end
  end

  {
    'fails' => ['echo "again-fleet: error: no" >&2; exit 1', %r{'again-fleet nodes' ended with 1}],
    'is of another version' => ["echo '{\"schema\":2,\"nodes\":[]}'", %r{something else than nodes}],
    'says no JSON' => ['echo again', %r{unexpected}],
    'says something by half' => ["echo '{\"schema\":1,\"nodes\":[{\"node\":\"x\"}]}'", %r{facts}],
  }.each do |what, (script, why)|
    context "where the program #{what}" do
      let(:inventory) { script }

      it 'finds nobody, with one warning' do
        expect(certnames('node')).to eq([])
        expect(warnings).to match([%r{\Ano PuppetDB is set up here, and nor can the inventory of again-fleet: .*#{why}.*; no server is found\z}])
      end
    end
  end

  it 'asks no program for longer than it may take' do
    File.write("#{@dir}/slow", "#!/bin/sh\nexec sleep 60\n")
    File.chmod(0o755, "#{@dir}/slow")
    allow(PuppetX::Again::Program).to receive(:path).and_return("#{@dir}/slow")
    expect(PuppetX::Again::Program.run(['nodes'], seconds: 1, combine: false)).to eq(['', 'took longer than 1 s'])
  end
end
