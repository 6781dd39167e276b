# frozen_string_literal: true

require 'spec_helper'
require_relative '../support/servers'

describe 'servers_with_facts' do
  include_context 'with servers'

  def certnames(*expressions)
    subject.execute(*expressions).map { |server| server['certname'] }
  end

  # The same from both.
  {
    ['role=node'] => %w[web1.test web2.test web3.test],
    ['role==node', 'hostname=web1'] => %w[web1.test],
    ['hostname=/^web1$|^old$/'] => %w[web1.test web3.test],
    ['hostname=~^web', 'hostname!=web1'] => %w[web2.test],
    ['hostname!=/^web/'] => %w[bad.test lb1.test web3.test],
    ['hostname==/slash/'] => %w[bad.test],
    ['networking.hostname=lb1'] => %w[lb1.test],
    ['os.family = Debian'] => %w[none.test],
    ['osfamily=Debian'] => %w[none.test],
    ['load>9'] => %w[web1.test],
    ['load>=9', 'load<=12'] => %w[web1.test web2.test],
    ['load<9'] => %w[web3.test],
    ['load=12'] => %w[web1.test],
    ['load=1.5'] => %w[web3.test],
    ['load>a'] => %w[bad.test],
    ['load!=12'] => %w[bad.test web2.test web3.test],
    ['spare=true'] => %w[web3.test],
    ['spare=false'] => %w[lb1.test],
    ['os.selinux.enabled=false'] => %w[none.test],
    ['selinux=false'] => %w[none.test],
    ['uptime>10'] => %w[lb1.test],
    ['uptime>13'] => [],
    ['networking=web1'] => [],
    ["role=#{Servers::NASTY}"] => %w[bad.test],
    ['a"b=x'] => %w[bad.test],
    ['role=node"] or certname ~ "'] => [],
    ['role"]}inventory{certname=x'] => [],
    ["role=node\0"] => [],
  }.each do |expressions, expected|
    context expressions.inspect do
      Servers.databases.each do |name, database|
        context "with #{name}" do
          let(:puppetdb) { database.call }

          it('finds the same') { expect([certnames(*expressions), warnings]).to eq([expected, []]) }
        end
      end

      context 'with the inventory' do
        let(:inventory) { good_inventory }

        it('finds the same') { expect([certnames(*expressions), warnings, File.read("#{@dir}/asked")]).to eq([expected, [], "nodes --json\n"]) }
      end
    end
  end

  context 'with PuppetDB' do
    let(:puppetdb) { Servers::PuppetDB.new }

    it 'selects there what can be selected there' do
      certnames('role=node', 'spare=true', 'hostname=old', 'load<9')
      expect(puppetdb.queries).to eq(
        [['from', 'inventory', ['extract', %w[certname environment facts],
                                ['and', ['=', 'facts.role', 'node'], ['or', ['=', 'facts.spare', 'true'], ['=', 'facts.spare', true]],
                                 ['or', ['=', 'facts.hostname', 'old'], ['=', 'facts.networking.hostname', 'old']],],],]],
      )
    end
  end

  context 'with several calls in a catalog' do
    let(:inventory) { good_inventory }

    it 'asks the inventory once' do
      found = [certnames('role=haproxy'), certnames('load<9'), certnames('role=haproxy')]
      expect([found, File.read("#{@dir}/asked")]).to eq([[%w[lb1.test], %w[web3.test], %w[lb1.test]], "nodes --json\n"])
    end
  end

  ['web', '=x', 'role', 'a b=c', 'role=/(/', 'role=~['].each do |expression|
    it "refuses #{expression}" do
      is_expected.to run.with_params(expression).and_raise_error(ArgumentError, %r{compares no fact|no regular expression})
    end
  end
end
