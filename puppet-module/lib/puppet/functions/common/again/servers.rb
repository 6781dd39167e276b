# frozen_string_literal: true

require 'json'
require 'set'
require 'timeout'

# @summary
#   The facts of all servers of which all comparisons hold, from PuppetDB, or from the inventory of again-fleet
#
# The functions `servers_with_role`, `servers_with_facts` and `server_with_role` call it. In one compilation PuppetDB has 20 seconds for all
# questions together, and the inventory 10; answers and failures are remembered until the compilation ends.
#
# @api private
Puppet::Functions.create_function(:'common::again::servers') do
  # @param comparisons
  #   Expressions as `servers_with_facts` takes them, or arrays of a fact, an operator and a value.
  #
  # @param environment
  #   The environment of the servers; by default any.
  #
  # @return [Array[Hash[String, Any]]]
  #   A hash of facts for each server, with its `certname`, in the order of the certnames.
  #
  # @example
  #   common::again::servers([['role', '==', 'haproxy'], 'uptime>10'])
  dispatch :servers do
    param 'Array[Variant[String[1], Tuple[String[1], String[1], String[1]]], 1]', :comparisons
    optional_param 'Optional[String[1]]', :environment
    return_type 'Array[Hash]'
  end

  # Flat names of facts that Puppet 8 no longer has, and where their values are. Neither this nor anything else in here is a constant or a
  # class: in puppetserver these would be those of all environments.
  flat_names = {
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
  define_method(:flat_names) { flat_names }

  def servers(comparisons, environment = nil)
    comparisons = comparisons.map { |given| given.is_a?(String) ? parse(given) : comparison(*given) }
    nodes = all(comparisons, environment).select do |node|
      (environment.nil? || node['environment'] == environment) && comparisons.all? { |comparison| holds?(comparison, node['facts']) }
    end
    nodes.sort_by { |node| node['certname'] }.map { |node| with_flat_names(node) }
  end

  private

  # One of `hostname=new`, `hostname=/^new$/`, `hostname!=new`, `uptime>10`. After `==` a value is that value, also between slashes.
  #
  # @raise [ArgumentError] if the text is not a comparison
  def parse(text)
    match = text.match(%r{\A\s*(?<fact>[^\s=!<>~]+)\s*(?<operator>=~|==|!=|<=|>=|=|<|>)\s*(?<wanted>.*?)\s*\z}m)
    raise ArgumentError, "#{text.inspect} compares no fact: write 'role=haproxy', 'role!=haproxy', 'uptime>10' or 'hostname=/^web/'" unless match

    comparison(match[:fact], match[:operator], match[:wanted])
  end

  # @raise [ArgumentError] if the value is a regular expression that cannot be read
  def comparison(fact, operator, wanted)
    pattern = wanted[%r{\A/(.*)/\z}m, 1]
    pattern ||= wanted if operator == '=~'
    pattern = ['=', '!=', '=~'].include?(operator) && pattern ? Regexp.new(pattern) : nil
    { fact: fact, operator: operator, wanted: wanted, pattern: pattern }
  rescue RegexpError => e
    raise ArgumentError, "#{wanted.inspect} is no regular expression: #{e.message}"
  end

  # Whether the comparison holds of these facts. A fact that a node does not have is like nothing, whatever the operator.
  def holds?(comparison, facts)
    value = fact(facts, comparison[:fact])
    return false if value.nil? || value.is_a?(Hash) || value.is_a?(Array)

    value = value.to_s
    wanted, pattern = comparison.values_at(:wanted, :pattern)
    case comparison[:operator]
    when '!=' then pattern ? !pattern.match?(value) : value != wanted
    when '=', '==', '=~' then pattern ? pattern.match?(value) : value == wanted
    else in_order?(value, comparison[:operator], wanted)
    end
  end

  # Numbers, if the wanted value is one; of `12 days` the 12.
  def in_order?(value, operator, wanted)
    wanted_number = number(wanted, %r{\A-?\d+(\.\d+)?\z})
    return value.public_send(operator, wanted) unless wanted_number

    value = number(value, %r{\A\s*-?\d+(\.\d+)?})
    !value.nil? && value.public_send(operator, wanted_number)
  end

  def number(text, pattern)
    Float(text[pattern]) if text.match?(pattern)
  end

  # A condition of PuppetDB's query language as JSON; nil if the comparison is made here alone. PuppetDB may find more by it, and never less. A name
  # that may mean something in a path is not put into one, and a value is a string of JSON, whatever is in it.
  def condition(comparison)
    return if comparison[:pattern] || !['=', '=='].include?(comparison[:operator])

    names = [comparison[:fact], flat_names[comparison[:fact]]].compact
    return unless names.all? { |name| name.match?(%r{\A[a-z_]\w*(\.[a-z_]\w*)*\z}i) }

    all = names.product(readings(comparison[:wanted])).map { |name, value| ['=', "facts.#{name}", value] }
    all.one? ? all.first : ['or', *all]
  end

  # The values of a fact that read like this text.
  def readings(text)
    others = { 'true' => [true], 'false' => [false] }.fetch(text, [])
    others = [text.to_i] if text.match?(%r{\A(0|-?[1-9]\d{0,15})\z})
    others = [text.to_f] if text.match?(%r{\A-?\d{1,9}\.\d{1,9}\z})
    [text, *others]
  end

  # A fact by its name, a dotted one too, or by the name that it had.
  def fact(facts, name)
    return facts[name] unless facts[name].nil?

    value = dig(facts, name)
    value.nil? && flat_names.key?(name) ? dig(facts, flat_names[name]) : value
  end

  def dig(facts, name)
    name.split('.').reduce(facts) { |value, key| value.is_a?(Hash) ? value[key] : nil }
  end

  def with_flat_names(node)
    facts = node['facts'].dup
    flat_names.each do |flat, name|
      value = dig(facts, name)
      facts[flat] = value if facts[flat].nil? && !value.nil?
    end
    facts.merge('certname' => node['certname'])
  end

  # What is remembered until the compilation ends.
  def memory
    compiler = closure_scope.compiler
    compiler.instance_variable_get(:@again_servers) ||
      compiler.instance_variable_set(:@again_servers, answers: {}, failure: nil, seconds: 20.0, inventory: nil, warned: Set.new)
  end

  def warn_once(text)
    Puppet.warning(text) if memory[:warned].add?(text)
  end

  # Nodes, some of which may not be wanted. If nobody can tell which there are, the compilation fails: an empty list would remove them.
  def all(comparisons, environment)
    nodes, why = from_puppetdb(question(comparisons, environment))
    return nodes || from_inventory unless why && configured?

    why = "PuppetDB cannot tell which servers there are: #{why}"
    case fallback
    when 'inventory'
      warn_once("#{why}; they come from the inventory of again-fleet")
      from_inventory
    when 'empty'
      warn_once("#{why}; no server is found")
      []
    else
      raise Puppet::Error, "#{why}; set #{fallback_key} in Hiera to 'inventory' or 'empty' to compile all the same"
    end
  end

  def fallback_key
    'common::again::servers::fallback'
  end

  # The site's substitute for an answer; nil for none.
  def fallback
    fallback = call_function('lookup', fallback_key, 'default_value' => nil)
    return fallback if [nil, 'inventory', 'empty'].include?(fallback)

    raise Puppet::Error, "#{fallback_key} in Hiera is #{fallback.inspect}: 'inventory' and 'empty' are allowed"
  end

  # The result of the block, and why it failed.
  def attempt
    [yield, nil]
  rescue StandardError, LoadError, NotImplementedError => e
    [nil, e.message.to_s.scrub.gsub(%r{[[:cntrl:]]+}, ' ').strip[0, 300]]
  end

  # Whether PuppetDB is set up here. Its function is there as soon as a package with it is installed.
  def configured?
    Puppet[:storeconfigs] || File.exist?(File.join(Puppet[:confdir], 'puppetdb.conf'))
  end

  # The answer to the question, nil without PuppetDB; and why it failed. After a failure nothing is asked any more.
  def from_puppetdb(question)
    answers = memory[:answers]
    return [nil, memory[:failure]] if memory[:failure]
    return [answers[question], nil] if answers.key?(question)

    answer, memory[:failure] = attempt { ask(question) }
    answers[question] = answer unless memory[:failure]
    [answer, memory[:failure]]
  end

  def ask(question)
    # The function that asks PuppetDB, where the compiler has one.
    query = closure_scope.compiler.loaders.private_environment_loader.load(:function, 'puppetdb_query')
    return unless query

    # Some servers of PuppetDB never answer a second request of Ruby's on one connection (Debian 12, TLS 1.3). Those of puppetserver are Java's.
    Puppet.runtime[:http].close if Puppet.run_mode.name == :user
    answer = in_time { query.call(closure_scope, question) }
    nodes = answer.is_a?(Array) && answer.all? { |node| node.is_a?(Hash) && node['certname'].is_a?(String) && node['facts'].is_a?(Hash) }
    raise Puppet::Error, 'its answer is not what was asked for' unless nodes

    answer
  end

  # Bounds the block by the time that is left to PuppetDB in this compilation. Without a class of its own the timeout is nothing that a rescue on the
  # way could take for something else.
  def in_time(&block)
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    Timeout.timeout([memory[:seconds], 0.001].max, &block)
  rescue Timeout::Error
    raise Puppet::Error, 'the questions of this compilation took longer than 20 s'
  ensure
    memory[:seconds] -= Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
  end

  # One query: inventory[certname, environment, facts] { … }.
  def question(comparisons, environment)
    conditions = comparisons.map { |comparison| condition(comparison) }.compact
    conditions.unshift(['=', 'environment', environment]) if environment
    what = ['extract', ['certname', 'environment', 'facts']]
    what << (conditions.one? ? conditions.first : ['and', *conditions]) if conditions.any?
    ['from', 'inventory', what]
  end

  # The nodes of the inventory.
  def from_inventory
    memory[:inventory] ||= begin
      nodes, why = attempt { listed }
      nodes || without_inventory("the inventory of again-fleet cannot tell which servers there are: #{why}")
    end
  end

  # No servers, with a warning, on a machine that has neither PuppetDB nor again-fleet, and if the fallback says so.
  def without_inventory(why)
    is_set_up = configured? || File.exist?(ENV['AGAIN_FLEET_CONFIG'] || '/etc/again-fleet.toml')
    raise Puppet::Error, "#{why}; set #{fallback_key} in Hiera to 'empty' to compile without servers" if is_set_up && fallback != 'empty'

    finding = is_set_up ? 'no server is found' : 'this machine has neither PuppetDB nor again-fleet, and no server is found'
    warn_once("#{why}; #{finding}")
    []
  end

  def listed
    output, status = list
    # Warnings have lines of their own, and stand in the JSON too.
    json, lines = output.lines.map(&:strip).reject(&:empty?).partition { |line| line.start_with?('{') }
    raise Puppet::Error, ["'again-fleet nodes' #{status}", lines.last].compact.join(': ') if status

    said = JSON.parse(json.join)
    nodes = said['nodes'] if said.is_a?(Hash) && said['schema'] == 1
    raise Puppet::Error, "'again-fleet nodes' said something else than nodes" unless nodes.is_a?(Array)

    published = nodes.any? { |node| node['at'] }
    nodes = nodes.map { |node| { 'certname' => node.fetch('node'), 'environment' => node['environment'], 'facts' => nested(node.fetch('facts')) } }
    Array(said['warnings']).each { |warning| warn_once("again-fleet: #{warning}") }
    # As with a revocation list that has expired here.
    ignored = Array(said['ignored'])
    raise Puppet::Error, "the facts of all nodes are ignored: #{ignored.first(20).join(', ')}" if ignored.any? && !published

    nodes
  end

  # The output of `again-fleet nodes --json`, and how it failed or nil.
  def list
    program = Puppet::Util.which('again-fleet') || Puppet::Util.which('/usr/local/bin/again-fleet')
    raise Puppet::Error, 'there is no program again-fleet on this machine: include common::again::fleet' unless program

    # Puppet's own execution knows no timeout, and in puppetserver there is no other way to start a program.
    words = ['timeout', '-k', '2', '10', program, 'nodes', '--json']
    output = Puppet::Util::Execution.execute(words, failonfail: false, combine: true, override_locale: false)
    how = { 0 => nil, 124 => 'took longer than 10 s', 137 => 'was killed' }.fetch(output.exitstatus || 137) { |status| "ended with #{status}" }
    # Puppet takes it for what the locale says.
    [String.new(output.to_s, encoding: Encoding::UTF_8).scrub, how]
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
end
