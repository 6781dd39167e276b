# frozen_string_literal: true

require 'net/http'
require 'openssl'

# Nodes, and the two that can be asked about them: what stands in for PuppetDB, and what stands in for the program again-fleet.
module Servers
  NASTY = %q(x" or certname ~ ".*"] } \\'")

  NODES = {
    'web2.test' => ['production', { 'role' => 'node', 'networking' => { 'hostname' => 'web2', 'ip' => '10.0.0.2', 'fqdn' => 'web2.test' }, 'load' => 9 }],
    'web1.test' => ['production', { 'role' => 'node', 'networking' => { 'hostname' => 'web1', 'ip' => '10.0.0.1', 'fqdn' => 'web1.test' }, 'load' => 12 }],
    'web3.test' => ['test', { 'role' => 'node', 'hostname' => 'old', 'load' => 1.5, 'spare' => true }],
    'lb1.test'  => ['production', { 'role' => 'haproxy', 'networking' => { 'hostname' => 'lb1' }, 'uptime' => '12 days', 'spare' => false }],
    'bad.test'  => ['production', { 'role' => NASTY, 'a"b' => 'x', 'hostname' => '/slash/', 'load' => 'high' }],
    'none.test' => ['production', { 'os' => { 'family' => 'Debian', 'selinux' => { 'enabled' => false } } }],
  }.freeze

  # It answers as PuppetDB 7 does to queries of its language as JSON, as far as these functions may use it, and to no others.
  class PuppetDB
    attr_reader :queries

    def initialize
      @queries = []
    end

    def call(_scope, query)
      @queries << query
      from, inventory, (extract, what, condition, *more) = query
      raise "PQL parse error: #{query}" unless [from, inventory, extract, what, more] == ['from', 'inventory', 'extract', %w[certname environment facts], []]

      rows = NODES.map { |certname, (environment, facts)| { 'certname' => certname, 'environment' => environment, 'facts' => facts } }
      JSON.parse(JSON.generate(rows.select { |row| condition.nil? || holds?(condition, row) }))
    end

    private

    def holds?(condition, row)
      operator, *operands = condition
      case operator
      when 'and' then operands.all? { |operand| holds?(operand, row) }
      when 'or' then operands.any? { |operand| holds?(operand, row) }
      when '=' then equal?(*operands, row)
      else raise "PQL parse error: #{condition}"
      end
    end

    # Of one type: 12 is not "12".
    def equal?(field, value, row)
      raise "unknown field #{field}" unless field == 'environment' || field.match?(%r{\Afacts(\.[A-Za-z_]\w*)+\z})

      found = field.split('.').reduce(row) { |hash, key| hash.is_a?(Hash) ? hash[key] : nil }
      found.class == value.class && found == value
    end
  end

  # PuppetDB itself, at this directory of tests/module/puppetdb, with these nodes.
  class RealPuppetDB < PuppetDB
    def self.at(dir)
      @at ||= new(dir).tap(&:fill)
    end

    def initialize(dir)
      super()
      @dir = dir
      @url = URI(File.read("#{dir}/conf/puppetdb.conf")[%r{server_urls = (\S+)}, 1])
    end

    def call(_scope, query)
      @queries << query
      JSON.parse(post('/pdb/query/v4', 'query' => query)).select { |row| NODES.key?(row['certname']) }
    end

    def fill
      NODES.each do |certname, (environment, facts)|
        now = Time.now.utc.strftime('%FT%TZ')
        facts = { 'certname' => certname, 'environment' => environment, 'values' => facts, 'producer_timestamp' => now, 'producer' => 'localhost' }
        post("/pdb/cmd/v1?command=replace_facts&version=5&certname=#{certname}&producer-timestamp=#{now}&secondsToWaitForCompletion=60", facts)
      end
    end

    private

    def post(path, body)
      ssl = "#{@dir}/ssl"
      key = OpenSSL::PKey.read(File.read("#{ssl}/private_keys/localhost.pem"))
      cert = OpenSSL::X509::Certificate.new(File.read("#{ssl}/certs/localhost.pem"))
      # Busy with its own start it answers 503.
      ends = Time.now + 120
      answer = nil
      until answer && (answer.code != '503' || Time.now > ends)
        answer = Net::HTTP.start(@url.host, @url.port, use_ssl: true, ca_file: "#{ssl}/certs/ca.pem", key: key, cert: cert, read_timeout: 90) do |http|
          http.post(path, JSON.generate(body), 'Content-Type' => 'application/json', 'Accept' => 'application/json')
        end
      end
      raise "PuppetDB: #{answer.code} #{answer.body}" unless answer.code == '200'

      answer.body
    end
  end

  # All that may be asked as PuppetDB: what stands in for it; and itself, where AGAIN_PUPPETDB says where one is that may be filled.
  def self.databases
    real = ENV.fetch('AGAIN_PUPPETDB', nil)
    { 'what stands in for PuppetDB' => -> { PuppetDB.new } }.merge(real ? { 'PuppetDB itself' => -> { RealPuppetDB.at(real) } } : {})
  end

  # Facts by dotted names, as texts.
  def self.flat(facts)
    facts.flat_map do |name, value|
      value.is_a?(Hash) ? flat(value).map { |key, one| ["#{name}.#{key}", one] } : [[name, value.to_s]]
    end
  end

  # What `again-fleet nodes --json` says of them, with these warnings.
  def self.inventory(warnings = [])
    nodes = NODES.map do |certname, (environment, facts)|
      { 'node' => certname, 'alive' => true, 'at' => '2026-11-23T00:00:00Z', 'facts' => flat(facts).to_h, 'classes' => [], 'environment' => environment,
        'again_fleet' => '0.1.0', 'puppet' => '7.23.0', 'last' => nil, 'running' => false, 'pending' => 0, 'disabled' => false, }
    end
    JSON.generate('schema' => 1, 'version' => '0.1.0', 'stored' => nil, 'warnings' => warnings, 'nodes' => nodes)
  end
end

# In each example: `puppetdb`, nil for none; whether it is `configured`; `inventory`, a shell script, nil for none; whether the machine was
# `set_up` for again-fleet; and the fallback in Hiera, nil for none.
RSpec.shared_context 'with servers' do
  let(:puppetdb) { nil }
  let(:configured) { true }
  let(:inventory) { nil }
  let(:set_up) { true }
  let(:fallback) { nil }
  let(:warnings) { [] }

  around do |example|
    Dir.mktmpdir('again-servers') do |dir|
      @dir = dir
      Puppet::Util.withenv('AGAIN_FLEET_CONFIG' => "#{dir}/again-fleet.toml") { example.run }
    end
  end

  before do
    if inventory
      File.write("#{@dir}/again-fleet", "#!/bin/sh\necho \"$@\" >>#{@dir}/asked\n#{inventory}\n")
      File.chmod(0o755, "#{@dir}/again-fleet")
    end
    File.write("#{@dir}/nodes", Servers.inventory)
    File.write("#{@dir}/again-fleet.toml", '') if set_up
    allow(Puppet::Util).to receive(:which).and_call_original
    allow(Puppet::Util).to receive(:which).with(%r{again-fleet\z}).and_return(inventory && "#{@dir}/again-fleet")
    allow_any_instance_of(Puppet::Pops::Loader::Loader).to receive(:load).and_wrap_original do |original, type, name| # rubocop:disable RSpec/AnyInstance
      (name == 'puppetdb_query') ? puppetdb : original.call(type, name)
    end
    allow(File).to receive(:exist?).and_call_original
    allow(File).to receive(:exist?).with(%r{/puppetdb\.conf\z}).and_return(configured)
    allow(Puppet).to receive(:warning) { |line| warnings << line }
  end

  # Hiera itself.
  let(:hiera_config) do
    data = fallback ? { 'common::again::servers::fallback' => fallback } : {}
    File.write("#{@dir}/data.yaml", data.to_yaml)
    hierarchy = [{ 'name' => 'data', 'path' => "#{@dir}/data.yaml", 'data_hash' => 'yaml_data' }]
    File.write("#{@dir}/hiera.yaml", { 'version' => 5, 'hierarchy' => hierarchy }.to_yaml)
    "#{@dir}/hiera.yaml"
  end

  # Nobody else may be asked.
  let(:good_inventory) { "cat #{@dir}/nodes" }
end
