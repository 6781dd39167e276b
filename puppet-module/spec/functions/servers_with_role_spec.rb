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

      it 'fails, whatever else could be asked, and names the key that allows it' do
        reason = 'PuppetDB cannot tell which servers there are: .+; set common::again::servers::fallback in Hiera to .inventory. or .empty. '
        is_expected.to run.with_params('node').and_raise_error(Puppet::Error, %r{\A#{reason}})
        expect(File).not_to exist("#{@dir}/asked")
      end

      context 'with the fallback inventory' do
        let(:fallback) { 'inventory' }

        context 'and an inventory' do
          let(:inventory) { good_inventory }

          it 'takes that, with one warning' do
            expect(certnames('node')).to eq(%w[web1.test web2.test web3.test])
            expect(warnings).to match([%r{\APuppetDB cannot tell which servers there are: .+; they come from the inventory of again-fleet\z}])
          end
        end

        [true, false].each do |set_up|
          context "and no inventory, #{set_up ? 'set up' : 'never set up'} for again-fleet" do
            let(:set_up) { set_up }

            it 'fails' do
              is_expected.to run.with_params('node').and_raise_error(Puppet::Error, %r{\Athe inventory of again-fleet cannot tell .+: there is no program})
            end
          end
        end
      end

      context 'with the fallback empty' do
        let(:fallback) { 'empty' }

        it 'finds nobody, with one warning' do
          expect(certnames('node')).to eq([])
          expect(warnings).to match([%r{\APuppetDB cannot tell which servers there are: .+; no server is found\z}])
        end
      end

      context 'with another fallback' do
        let(:fallback) { 'Inventory' }

        it('fails') { is_expected.to run.with_params('node').and_raise_error(Puppet::Error, %r{in Hiera is "Inventory": 'inventory' and 'empty' are allowed}) }
      end
    end
  end

  context 'where PuppetDB is installed and not set up' do
    let(:puppetdb) { ->(*) { raise Puppet::Error, "Failed to execute '/pdb/query/v4'" } }
    let(:configured) { false }
    let(:inventory) { good_inventory }

    it 'takes the inventory' do
      expect(certnames('node')).to eq(%w[web1.test web2.test web3.test])
      expect(warnings).to eq([])
    end
  end

  context 'with an inventory of which not all is known' do
    let(:inventory) { "echo again-fleet: warning: read 2h ago >&2; #{good_inventory}" }

    it 'takes it, and passes its warnings on once for a catalog' do
      File.write("#{@dir}/nodes", Servers.inventory(['read 2h ago', 'lost']))
      expect([certnames('node'), certnames('haproxy')]).to eq([%w[web1.test web2.test web3.test], %w[lb1.test]])
      expect(warnings).to eq(['again-fleet: read 2h ago', 'again-fleet: lost'])
    end
  end

  {
    'fails' => ['echo "again-fleet: error: no inventory" >&2; exit 1', %r{'again-fleet nodes' ended with 1: again-fleet: error: no inventory}],
    'is of another version' => ["echo '{\"schema\":2,\"nodes\":[]}'", %r{something else than nodes}],
    'says no JSON' => ['echo again', %r{unexpected|empty}],
    'says something by half' => ["echo '{\"schema\":1,\"nodes\":[{\"node\":\"x\"}]}'", %r{facts}],
    'believes no node' => ["echo '{\"schema\":1,\"ignored\":[\"web1\",\"web2\"],\"nodes\":[{\"node\":\"x\",\"at\":null,\"facts\":{}}]}'", %r{the facts of all nodes are ignored: web1, web2}],
    'is missing' => [nil, %r{there is no program again-fleet on this machine}],
  }.each do |what, (script, why)|
    context "where the program #{what}" do
      let(:inventory) { script }

      it 'fails' do
        reason = %r{\Athe inventory of again-fleet cannot tell which servers there are: .*#{why}}
        is_expected.to run.with_params('node').and_raise_error(Puppet::Error, reason)
        expect(warnings).to eq([])
      end

      context 'on a machine that has no PuppetDB and was never set up' do
        let(:set_up) { false }
        let(:configured) { false }

        it 'finds nobody, with one warning for a catalog' do
          expect([certnames('node'), certnames('haproxy')]).to eq([[], []])
          expect(warnings).to match([%r{#{why}.*; this machine has neither PuppetDB nor again-fleet, and no server is found\z}])
        end
      end

      context 'with the fallback empty' do
        let(:fallback) { 'empty' }

        it 'finds nobody, with one warning for a catalog' do
          expect([certnames('node'), certnames('haproxy')]).to eq([[], []])
          expect(warnings).to match([%r{#{why}.*; no server is found\z}])
        end
      end
    end
  end
end
