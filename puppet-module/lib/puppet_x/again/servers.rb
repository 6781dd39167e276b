# frozen_string_literal: true

require 'json'
require 'timeout'
require_relative 'program'

# Who is there, by facts: from PuppetDB, or from the inventory of again-fleet. What the functions `servers_with_role`, `servers_with_facts`
# and `server_with_role` share. Loaded in puppetserver too, and there once for each environment: no constants.
class PuppetX::Again::Servers
  # One of `hostname=new`, `hostname=/^new$/`, `hostname!=new`, `uptime>10`: whether the facts of a node are like that. After `==` a value is
  # that value, also between slashes.
  #
  # A fact that a node does not have is like nothing, whatever the operator.
  class Comparison
    # @raise [ArgumentError] if the text is none
    def self.parse(text)
      match = text.match(%r{\A\s*(?<fact>[^\s=!<>~]+)\s*(?<operator>=~|==|!=|<=|>=|=|<|>)\s*(?<wanted>.*?)\s*\z}m)
      raise ArgumentError, "#{text.inspect} compares no fact: write 'role=haproxy', 'role!=haproxy', 'uptime>10' or 'hostname=/^web/'" unless match

      new(match[:fact], match[:operator], match[:wanted])
    end

    # @raise [ArgumentError] if the value is a regular expression that cannot be read
    def initialize(fact, operator, wanted)
      @fact = fact
      @operator = operator
      @wanted = wanted
      pattern = wanted[%r{\A/(.*)/\z}m, 1]
      pattern ||= wanted if operator == '=~'
      @pattern = Regexp.new(pattern) if pattern && ['=', '!=', '=~'].include?(operator)
    rescue RegexpError => e
      raise ArgumentError, "#{wanted.inspect} is no regular expression: #{e.message}"
    end

    # Whether it holds of these facts.
    def holds?(facts)
      value = PuppetX::Again::Servers.fact(facts, @fact)
      return false if value.nil? || value.is_a?(Hash) || value.is_a?(Array)

      value = value.to_s
      case @operator
      when '!=' then @pattern ? !@pattern.match?(value) : value != @wanted
      when '=', '==', '=~' then @pattern ? @pattern.match?(value) : value == @wanted
      else in_order?(value)
      end
    end

    # What PuppetDB is to look for, in terms of its query language as JSON; nil for what is compared here alone. More may be found by it, and
    # never less. A name that may mean something in a path is not put into one, and a value is a string of JSON, whatever is in it.
    def condition
      return if @pattern || !['=', '=='].include?(@operator)

      names = [@fact, PuppetX::Again::Servers.flat_names[@fact]].compact
      return unless names.all? { |name| name.match?(%r{\A[a-z_]\w*(\.[a-z_]\w*)*\z}i) }

      all = names.product(meant).map { |name, value| ['=', "facts.#{name}", value] }
      all.one? ? all.first : ['or', *all]
    end

    private

    # Numbers, if the wanted value is one; of `12 days` the 12.
    def in_order?(value)
      wanted = number(@wanted, %r{\A-?\d+(\.\d+)?\z})
      return value.public_send(@operator, @wanted) unless wanted

      value = number(value, %r{\A\s*-?\d+(\.\d+)?})
      !value.nil? && value.public_send(@operator, wanted)
    end

    def number(text, pattern)
      Float(text[pattern]) if text.match?(pattern)
    end

    # What a fact may be that reads like this.
    def meant
      others = { 'true' => [true], 'false' => [false] }.fetch(@wanted, [])
      others = [@wanted.to_i] if @wanted.match?(%r{\A(0|-?[1-9]\d{0,15})\z})
      others = [@wanted.to_f] if @wanted.match?(%r{\A-?\d{1,9}\.\d{1,9}\z})
      [@wanted, *others]
    end
  end

  # Flat names of facts that Puppet 8 no longer has, and where their values are.
  def self.flat_names
    @flat_names ||= {
      'architecture' => 'os.architecture', 'bios_vendor' => 'dmi.bios.vendor', 'bios_version' => 'dmi.bios.version', 'domain' => 'networking.domain',
      'fqdn' => 'networking.fqdn', 'gid' => 'identity.group', 'hardwareisa' => 'processors.isa', 'hardwaremodel' => 'os.hardware',
      'hostname' => 'networking.hostname', 'id' => 'identity.user', 'ipaddress' => 'networking.ip', 'ipaddress6' => 'networking.ip6',
      'lsbdistcodename' => 'os.distro.codename', 'lsbdistdescription' => 'os.distro.description', 'lsbdistid' => 'os.distro.id',
      'lsbdistrelease' => 'os.distro.release.full', 'lsbmajdistrelease' => 'os.distro.release.major', 'macaddress' => 'networking.mac',
      'manufacturer' => 'dmi.manufacturer', 'memoryfree' => 'memory.system.available', 'memorysize' => 'memory.system.total',
      'netmask' => 'networking.netmask', 'netmask6' => 'networking.netmask6', 'network' => 'networking.network', 'network6' => 'networking.network6',
      'operatingsystem' => 'os.name', 'operatingsystemmajrelease' => 'os.release.major', 'operatingsystemrelease' => 'os.release.full',
      'osfamily' => 'os.family', 'physicalprocessorcount' => 'processors.physicalcount', 'processorcount' => 'processors.count',
      'productname' => 'dmi.product.name', 'rubyversion' => 'ruby.version', 'selinux' => 'os.selinux.enabled',
      'serialnumber' => 'dmi.product.serial_number', 'swapfree' => 'memory.swap.available', 'swapsize' => 'memory.swap.total',
      'uptime' => 'system_uptime.uptime', 'uptime_days' => 'system_uptime.days', 'uptime_hours' => 'system_uptime.hours',
      'uptime_seconds' => 'system_uptime.seconds', 'uuid' => 'dmi.product.uuid'
    }.freeze
  end

  # A fact by its name, a dotted one too, or by the name that it had.
  def self.fact(facts, name)
    return facts[name] unless facts[name].nil?

    value = dig(facts, name)
    value.nil? && flat_names.key?(name) ? dig(facts, flat_names[name]) : value
  end

  def self.dig(facts, name)
    name.split('.').reduce(facts) { |value, key| value.is_a?(Hash) ? value[key] : nil }
  end

  # @param scope
  #   Of the catalog that is compiled.
  def initialize(scope)
    @scope = scope
  end

  # The facts of all nodes of which all comparisons hold, in the order of their certnames.
  def find(comparisons, environment = nil)
    nodes = all(comparisons, environment).select do |node|
      (environment.nil? || node['environment'] == environment) && comparisons.all? { |comparison| comparison.holds?(node['facts']) }
    end
    nodes.sort_by { |node| node['certname'] }.map { |node| with_flat_names(node) }
  end

  private

  # Nodes, some of which may not be wanted. Where nobody can tell which there are, the compilation fails: an empty list would remove them.
  def all(comparisons, environment)
    nodes, why = attempt { from_puppetdb(comparisons, environment) }
    return nodes || from_inventory unless why && configured?

    why = "PuppetDB cannot tell which servers there are: #{why}"
    case fallback
    when 'inventory'
      Puppet.warning("#{why}; they come from the inventory of again-fleet")
      from_inventory
    when 'empty'
      Puppet.warning("#{why}; no server is found")
      []
    else
      raise Puppet::Error, "#{why}; set #{fallback_key} in Hiera to 'inventory' or 'empty' to compile all the same"
    end
  end

  def fallback_key
    'common::again::servers::fallback'
  end

  # What counts where PuppetDB fails; nil for nothing.
  def fallback
    fallback = @scope.call_function('lookup', [fallback_key, { 'default_value' => nil }])
    return fallback if [nil, 'inventory', 'empty'].include?(fallback)

    raise Puppet::Error, "#{fallback_key} in Hiera is #{fallback.inspect}: 'inventory' and 'empty' are allowed"
  end

  # What the block returns, and why it failed.
  def attempt
    [yield, nil]
  rescue StandardError, LoadError, NotImplementedError => e
    [nil, e.message.to_s.scrub.gsub(%r{[[:cntrl:]]+}, ' ').strip[0, 300]]
  end

  # Whether PuppetDB is set up here. Its function is there as soon as a package with it is installed.
  def configured?
    Puppet[:storeconfigs] || File.exist?(File.join(Puppet[:confdir], 'puppetdb.conf'))
  end

  # The function that asks PuppetDB, where the compiler has one.
  def puppetdb
    @scope.compiler.loaders.private_environment_loader.load(:function, 'puppetdb_query')
  end

  # nil where there is no PuppetDB.
  def from_puppetdb(comparisons, environment)
    query = puppetdb
    return unless query

    # Some servers of PuppetDB never answer a second request of Ruby's on one connection (Debian 12, TLS 1.3). Those of puppetserver are Java's.
    Puppet.runtime[:http].close if Puppet.run_mode.name == :user
    answer = in_time(20) { query.call(@scope, question(comparisons, environment)) }
    nodes = answer.is_a?(Array) && answer.all? { |node| node.is_a?(Hash) && node['certname'].is_a?(String) && node['facts'].is_a?(Hash) }
    raise Puppet::Error, 'its answer is not what was asked for' unless nodes

    answer
  end

  # Without a class of its own the timeout is nothing that a rescue on the way could take for something else.
  def in_time(seconds, &block)
    Timeout.timeout(seconds, &block)
  rescue Timeout::Error
    raise Puppet::Error, "it took longer than #{seconds} s"
  end

  # One query: inventory[certname, environment, facts] { … }.
  def question(comparisons, environment)
    conditions = comparisons.map(&:condition).compact
    conditions.unshift(['=', 'environment', environment]) if environment
    what = ['extract', ['certname', 'environment', 'facts']]
    what << (conditions.one? ? conditions.first : ['and', *conditions]) if conditions.any?
    ['from', 'inventory', what]
  end

  # The nodes of the inventory, asked for once for a catalog: however often functions are called in it, the answer is the same.
  def from_inventory
    owner = @scope.respond_to?(:compiler) ? @scope.compiler : @scope
    known = owner.instance_variable_get(:@again_fleet_nodes)
    known || owner.instance_variable_set(:@again_fleet_nodes, asked_for)
  end

  # The nodes of the inventory; nobody on a machine that was never set up for again-fleet.
  def asked_for
    nodes, why = attempt { listed }
    return nodes if nodes

    why = "the inventory of again-fleet cannot tell which servers there are: #{why}"
    raise Puppet::Error, why if File.exist?(ENV['AGAIN_FLEET_CONFIG'] || '/etc/again-fleet.toml')

    Puppet.warning("#{why}; this machine has neither PuppetDB nor again-fleet, and no server is found")
    []
  end

  def listed
    output, status = PuppetX::Again::Program.run(['nodes', '--json'], seconds: 10, combine: true)
    # Warnings have lines of their own, and stand in the JSON too.
    json, lines = output.lines.map(&:strip).reject(&:empty?).partition { |line| line.start_with?('{') }
    raise Puppet::Error, ["'again-fleet nodes' #{status}", lines.last].compact.join(': ') if status

    said = JSON.parse(json.join)
    nodes = said['nodes'] if said.is_a?(Hash) && said['schema'] == 1
    raise Puppet::Error, "'again-fleet nodes' said something else than nodes" unless nodes.is_a?(Array)

    published = nodes.any? { |node| node['at'] }
    nodes = nodes.map { |node| { 'certname' => node.fetch('node'), 'environment' => node['environment'], 'facts' => nested(node.fetch('facts')) } }
    Array(said['warnings']).each { |warning| Puppet.warning("again-fleet: #{warning}") }
    # As with a revocation list that has expired here.
    ignored = Array(said['ignored'])
    raise Puppet::Error, "the facts of all nodes are ignored: #{ignored.first(20).join(', ')}" if ignored.any? && !published

    nodes
  end

  # Facts by dotted names, as structured facts have them; what lies below a fact that is a text stays as it is.
  def nested(facts)
    facts.sort.each_with_object({}) do |(name, value), all|
      *above, last = name.split('.')
      place = above.reduce(all) { |hash, key| hash.is_a?(Hash) ? (hash[key] ||= {}) : nil }
      place, last = all, name unless place.is_a?(Hash) && last && !place.key?(last)
      place[last] = value
    end
  end

  def with_flat_names(node)
    facts = node['facts'].dup
    self.class.flat_names.each do |flat, name|
      value = self.class.dig(facts, name)
      facts[flat] = value if facts[flat].nil? && !value.nil?
    end
    facts.merge('certname' => node['certname'])
  end
end
