# frozen_string_literal: true

require 'json'
require 'set'
require 'timeout'

# @summary
#   The facts of all servers that match all comparisons, from PuppetDB or from the inventory of again-fleet
#
# The functions `servers_with_role`, `servers_with_facts` and `server_with_role` call it. In one compilation PuppetDB has 20 seconds for all
# queries together, and the inventory 10; answers and failures are kept until the compilation ends.
#
# @api private
Puppet::Functions.create_function(:'common::again::servers') do
  # @param comparisons
  #   Expressions as for `servers_with_facts`, or arrays of a fact, an operator and a value.
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

  # Flat names of facts that Puppet 8 no longer has, and the dotted names of their values. No constants and no classes in this file:
  # puppetserver would share them between all environments.
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
    'uptime_seconds' => 'system_uptime.seconds', 'uuid' => 'dmi.product.uuid',
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

  # Parses a text such as `hostname=new`, `hostname=/^new$/`, `hostname!=new` or `uptime>10`. After `==` the value is literal, even between
  # slashes.
  #
  # @raise [ArgumentError] if the text is not a comparison
  def parse(text)
    match = text.match(%r{\A\s*(?<fact>[^\s=!<>~]+)\s*(?<operator>=~|==|!=|<=|>=|=|<|>)\s*(?<wanted>.*?)\s*\z}m)
    raise ArgumentError, "#{text.inspect} compares no fact: write 'role=haproxy', 'role!=haproxy', 'uptime>10' or 'hostname=/^web/'" unless match

    comparison(match[:fact], match[:operator], match[:wanted])
  end

  # @raise [ArgumentError] if the value is an invalid regular expression
  def comparison(fact, operator, wanted)
    pattern = wanted[%r{\A/(.*)/\z}m, 1]
    pattern ||= wanted if operator == '=~'
    pattern = (['=', '!=', '=~'].include?(operator) && pattern) ? Regexp.new(pattern) : nil
    { fact: fact, operator: operator, wanted: wanted, pattern: pattern }
  rescue RegexpError => e
    raise ArgumentError, "#{wanted.inspect} is no regular expression: #{e.message}"
  end

  # Whether these facts match the comparison. A fact that the node lacks never matches, whatever the operator.
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

  # Compares numbers if the wanted value is a number, otherwise texts. A fact such as `12 days` counts as 12.
  def in_order?(value, operator, wanted)
    wanted_number = number(wanted, %r{\A-?\d+(\.\d+)?\z})
    return value.public_send(operator, wanted) unless wanted_number

    value = number(value, %r{\A\s*-?\d+(\.\d+)?})
    !value.nil? && value.public_send(operator, wanted_number)
  end

  def number(text, pattern)
    Float(text[pattern]) if text.match?(pattern)
  end

  # Condition in PuppetDB's query language, as arrays for JSON; nil if only this function evaluates the comparison. The condition may match
  # more nodes than the comparison, never fewer. A name with characters that are special in a path is never used in one, and a value is
  # always a JSON string, so it needs no escaping.
  def condition(comparison)
    return if comparison[:pattern] || !['=', '=='].include?(comparison[:operator])

    names = [comparison[:fact], flat_names[comparison[:fact]]].compact
    return unless names.all? { |name| name.match?(%r{\A[a-z_]\w*(\.[a-z_]\w*)*\z}i) }

    all = names.product(readings(comparison[:wanted])).map { |name, value| ['=', "facts.#{name}", value] }
    all.one? ? all.first : ['or', *all]
  end

  # Values of a fact that this text may denote: the text itself, a boolean, a number.
  def readings(text)
    others = { 'true' => [true], 'false' => [false] }.fetch(text, [])
    others = [text.to_i] if text.match?(%r{\A(0|-?[1-9]\d{0,15})\z})
    others = [text.to_f] if text.match?(%r{\A-?\d{1,9}\.\d{1,9}\z})
    [text, *others]
  end

  # Value of a fact by its name, which may be dotted or a flat name of before Puppet 8.
  def fact(facts, name)
    return facts[name] unless facts[name].nil?

    value = dig(facts, name)
    (value.nil? && flat_names.key?(name)) ? dig(facts, flat_names[name]) : value
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

  # State that is kept until the compilation ends.
  def memory
    compiler = closure_scope.compiler
    compiler.instance_variable_get(:@again_servers) ||
      compiler.instance_variable_set(:@again_servers, answers: {}, failure: nil, seconds: 20.0, inventory: nil, warned: Set.new)
  end

  def warn_once(text)
    Puppet.warning(text) if memory[:warned].add?(text)
  end

  # Nodes that may match; the caller has to compare them. If the nodes cannot be determined, the compilation fails: with an empty list a
  # manifest would remove all of them.
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

  # Fallback that the site has set in Hiera; nil if it has set none.
  def fallback
    fallback = call_function('lookup', fallback_key, 'default_value' => nil)
    return fallback if [nil, 'inventory', 'empty'].include?(fallback)

    raise Puppet::Error, "#{fallback_key} in Hiera is #{fallback.inspect}: 'inventory' and 'empty' are allowed"
  end

  # Result of the block and nil, or nil and the error message.
  def attempt
    [yield, nil]
  rescue StandardError, LoadError, NotImplementedError => e
    [nil, e.message.to_s.scrub.gsub(%r{[[:cntrl:]]+}, ' ').strip[0, 300]]
  end

  # Whether this machine is configured for PuppetDB. The function `puppetdb_query` says nothing: it exists if its package is installed.
  def configured?
    Puppet[:storeconfigs] || File.exist?(File.join(Puppet[:confdir], 'puppetdb.conf'))
  end

  # Answer to the query, nil without PuppetDB, and the error message or nil. After a failure PuppetDB gets no more queries.
  def from_puppetdb(question)
    answers = memory[:answers]
    return [nil, memory[:failure]] if memory[:failure]
    return [answers[question], nil] if answers.key?(question)

    answer, memory[:failure] = attempt { ask(question) }
    answers[question] = answer unless memory[:failure]
    [answer, memory[:failure]]
  end

  def ask(question)
    # The function that queries PuppetDB; nil if the compiler has none.
    query = closure_scope.compiler.loaders.private_environment_loader.load(:function, 'puppetdb_query')
    return unless query

    # Some PuppetDB servers never answer a second request of Ruby's on one connection (Debian 12, TLS 1.3). puppetserver connects with Java.
    Puppet.runtime[:http].close if Puppet.run_mode.name == :user
    answer = in_time { query.call(closure_scope, question) }
    nodes = answer.is_a?(Array) && answer.all? { |node| node.is_a?(Hash) && node['certname'].is_a?(String) && node['facts'].is_a?(Hash) }
    raise Puppet::Error, 'its answer is not what was asked for' unless nodes

    answer
  end

  # Limits the block to the time that PuppetDB has left in this compilation. The timeout has no exception class of its own, so that no
  # `rescue` inside the block can catch it.
  def in_time(&block)
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    Timeout.timeout([memory[:seconds], 0.001].max, &block)
  rescue Timeout::Error
    raise Puppet::Error, 'the questions of this compilation took longer than 20 s'
  ensure
    memory[:seconds] -= Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
  end

  # Query for PuppetDB: inventory[certname, environment, facts] { … }.
  def question(comparisons, environment)
    conditions = comparisons.map { |comparison| condition(comparison) }.compact
    conditions.unshift(['=', 'environment', environment]) if environment
    what = ['extract', %w[certname environment facts]]
    what << (conditions.one? ? conditions.first : ['and', *conditions]) if conditions.any?
    ['from', 'inventory', what]
  end

  # Nodes of the inventory of again-fleet.
  def from_inventory
    memory[:inventory] ||= begin
      nodes, why = attempt { listed }
      nodes || without_inventory("the inventory of again-fleet cannot tell which servers there are: #{why}")
    end
  end

  # An empty array, with a warning, on a machine that has neither PuppetDB nor again-fleet, or with the fallback `empty`.
  #
  # @raise [Puppet::Error] otherwise
  def without_inventory(why)
    is_set_up = configured? || File.exist?(ENV['AGAIN_FLEET_CONFIG'] || '/etc/again-fleet.toml')
    raise Puppet::Error, "#{why}; set #{fallback_key} in Hiera to 'empty' to compile without servers" if is_set_up && fallback != 'empty'

    finding = is_set_up ? 'no server is found' : 'this machine has neither PuppetDB nor again-fleet, and no server is found'
    warn_once("#{why}; #{finding}")
    []
  end

  def listed
    output, status = list
    # Warnings are printed as lines of their own, and are in the JSON too.
    json, lines = output.lines.map(&:strip).reject(&:empty?).partition { |line| line.start_with?('{') }
    raise Puppet::Error, ["'again-fleet nodes' #{status}", lines.last].compact.join(': ') if status

    said = JSON.parse(json.join)
    nodes = said['nodes'] if said.is_a?(Hash) && said['schema'] == 1
    raise Puppet::Error, "'again-fleet nodes' said something else than nodes" unless nodes.is_a?(Array)

    published = nodes.any? { |node| node['at'] }
    nodes = nodes.map { |node| { 'certname' => node.fetch('node'), 'environment' => node['environment'], 'facts' => nested(node.fetch('facts')) } }
    Array(said['warnings']).each { |warning| warn_once("again-fleet: #{warning}") }
    # For example when the revocation list on this machine has expired.
    ignored = Array(said['ignored'])
    raise Puppet::Error, "the facts of all nodes are ignored: #{ignored.first(20).join(', ')}" if ignored.any? && !published

    nodes
  end

  # Output of `again-fleet nodes --json`, and the error or nil.
  def list
    program = Puppet::Util.which('again-fleet') || Puppet::Util.which('/usr/local/bin/again-fleet')
    raise Puppet::Error, 'there is no program again-fleet on this machine: include common::again::fleet' unless program

    # Puppet's own execution has no timeout, and puppetserver offers no other way to start a program.
    words = ['timeout', '-k', '2', '10', program, 'nodes', '--json']
    output = Puppet::Util::Execution.execute(words, failonfail: false, combine: true, override_locale: false)
    how = { 0 => nil, 124 => 'took longer than 10 s', 137 => 'was killed' }.fetch(output.exitstatus || 137) { |status| "ended with #{status}" }
    # Puppet assumes the encoding of the locale.
    [String.new(output.to_s, encoding: Encoding::UTF_8).scrub, how]
  end

  # Structured facts from facts with dotted names. If a part of a dotted name is a fact with a text already, the name stays dotted.
  def nested(facts)
    facts.sort.each_with_object({}) do |(name, value), all|
      *above, last = name.split('.')
      place = above.reduce(all) { |hash, key| hash.is_a?(Hash) ? (hash[key] ||= {}) : nil }
      place, last = all, name unless place.is_a?(Hash) && last && !place.key?(last)
      place[last] = value
    end
  end
end
