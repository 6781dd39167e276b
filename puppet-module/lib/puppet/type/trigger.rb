# frozen_string_literal: true

# @summary
#   Starts Puppet on other nodes when it is notified
Puppet::Type.newtype(:trigger) do
  @doc = <<~DOC
    @summary Starts Puppet on other nodes when it is notified

    A trigger does nothing until another resource changes and notifies it. Then Puppet runs once on each node that the trigger names or
    selects, after a run that is in progress there, and within the cap of that node. As with every resource, Puppet skips the refresh under
    noop, and if one of the notifying resources has failed. The report shows the result of the trigger. The resource fails if the trigger
    could neither be sent nor stored. If the service of this node is down, the trigger is stored on disk until it starts; with `wait` the
    resource fails.

    `where`, `class` and `environment` select nodes when the trigger is sent, by the inventory that the nodes publish with the class
    `common::again::fleet`. The report lists the selected nodes. The sending node is not selected unless `hosts` names it. If no node is
    selected, the resource says so and does not fail.

    If other resources have to be applied before the trigger is sent, order them with `require`, `before` or `->`, or send it at the end of
    the run with `after_run`. With `parallel` the trigger is a rolling run, which needs no supervision: at most that number of nodes run at
    the same time. With `stop_after_failures` no more nodes start once that number of nodes has failed.

    @example The load balancers look for new web servers
      trigger { 'refresh load balancers':
        hosts => ['lb01.example.com', 'lb02.example.com'],
      }

      file { '/etc/httpd/conf.d/shop.conf':
        content => template('profile/shop.conf.erb'),
        notify  => Trigger['refresh load balancers'],
      }

    @example All servers of a role, five at a time, until two have failed
      trigger { 'roll out the shop':
        where               => { role => 'shop' },
        parallel            => 5,
        stop_after_failures => 2,
      }
  DOC

  newparam(:name, namevar: true) do
    desc <<~DESC
      Name of the trigger. A newer trigger of the same name replaces an older one that its node has not yet accepted.
    DESC

    validate do |value|
      good = value.to_s.match?(%r{\A[[:print:]]+\z}) && value.to_s.bytesize <= 128
      raise ArgumentError, 'a name has to be a string of printable characters, of 1 to 128 bytes' unless good
    end
  end

  newparam(:hosts, array_matching: :all) do
    desc <<~DESC
      Certnames of the nodes: a string, or an array of strings and of hashes with `certname` or `fqdn`, such as the result of
      `puppetdb_query('inventory[certname] { facts.role = "haproxy" }')`. With an empty array nothing is sent, and the resource says so.
    DESC

    validate do |value|
      certnames(value).each do |host|
        next if host.is_a?(String) && host.match?(%r{\A[a-z0-9._-]+\z}i)

        # A row of PuppetDB may be long, and hold what does not belong in a report.
        raise ArgumentError, "a hash with the keys #{host.keys} names no node: 'certname' or 'fqdn' does" if host.is_a?(Hash)

        raise ArgumentError, "#{host.inspect} is not a certname"
      end
    end

    munge { |value| certnames(value).map(&:downcase).uniq.sort }

    # The strings, and the `certname` or `fqdn` of each hash. A hash with neither stays as it is.
    def certnames(value)
      [value].flatten.map { |host| (host.is_a?(Hash) && (host['certname'] || host['fqdn'])) || host }
    end
  end

  newparam(:where) do
    desc <<~DESC
      Selects nodes by the facts that they publish, at the moment of sending: a hash of facts and their values, or strings with one of `=`,
      `!=`, `<`, `>`, `=~`, such as `'uptime>10'`. All conditions have to match.
    DESC

    validate do |value|
      good = if value.is_a?(Hash)
               value.any? && value.all? { |fact, wanted| fact.to_s.match?(%r{\A[^=!<>~\s]+\z}) && [String, Numeric, TrueClass, FalseClass].any? { |type| wanted.is_a?(type) } }
             else
               words = Array(value)
               words.any? && words.all? { |word| word.is_a?(String) && word.match?(%r{\A[^=!<>~\s]+\s*(=~|!=|=|<|>)}) }
             end
      raise ArgumentError, "#{value.inspect} selects by no fact: give a hash such as { role => 'haproxy' }, or strings such as 'uptime>10'" unless good
    end

    munge { |value| value.is_a?(Hash) ? value.map { |fact, wanted| "#{fact}=#{' ' if wanted.to_s.start_with?('~')}#{wanted}" } : Array(value) }
  end

  newparam(:class) do
    desc 'Selects the nodes whose last catalog had this class, or one of these classes.'

    validate do |value|
      Array(value).each do |name|
        raise ArgumentError, "#{name.inspect} is not the name of a class" unless name.is_a?(String) && name.match?(%r{\A(::)?[a-z]\w*(::[a-z]\w*)*\z}i)
      end
    end

    munge { |value| Array(value).map { |name| name.delete_prefix('::').downcase } }
  end

  newparam(:environment) do
    desc 'Selects the nodes of this environment.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not the name of an environment" unless value.is_a?(String) && value.match?(%r{\A\w+\z}) }
  end

  duration = %r{\A\d+[smhd]?\z}

  newparam(:delta) do
    desc 'Minimum delay before each node runs: seconds, or a string with a unit, such as `2m`.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a duration" unless value.to_s.match?(duration) }
    munge(&:to_s)
  end

  newparam(:ttl) do
    desc 'Time in which a node may accept it: seconds, or with a unit; at most a day. Default: setting `ttl` (1h); with `parallel` a day.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a duration" unless value.to_s.match?(duration) }
    munge(&:to_s)
  end

  newparam(:after_run, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc 'Whether to send the trigger after this run has applied all other resources, instead of immediately.'

    defaultto false
  end

  newparam(:parallel) do
    desc <<~DESC
      Maximum number of nodes that run at the same time: a rolling run. The next node starts when another one has published how its run
      ended. A disconnected node does not delay the others. Needs etcd.
    DESC

    validate { |value| raise ArgumentError, "#{value.inspect} is not a number of nodes" unless value.to_s.match?(%r{\A[1-9]\d*\z}) }
    munge { |value| Integer(value) }
  end

  newparam(:stop_after_failures) do
    desc 'Number of failed nodes after which no more nodes start. Needs `parallel`.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a number of nodes" unless value.to_s.match?(%r{\A[1-9]\d*\z}) }
    munge { |value| Integer(value) }
  end

  newparam(:wait, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc 'Whether this run waits until all nodes have published how their runs ended. The resource fails if one of them failed.'

    defaultto false
  end

  newparam(:command) do
    desc <<~DESC
      The program and its arguments for the provider `command`, run without a shell. `%{hosts}` stands for all nodes, separated by commas; a
      command with `%{host}` runs once for each node. If the array or a word of it is Sensitive, the report shows neither the command nor
      its output.
    DESC

    validate do |value|
      words = unwrap(value)
      raise ArgumentError, 'the command has to be an array of strings' unless words.any? && words.all?(String)
      raise ArgumentError, 'the command has to begin with an absolute path' unless words.first.start_with?('/')
      raise ArgumentError, 'the command has neither %{host} nor %{hosts}' unless words.drop(1).any? { |word| word.match?(%r{%\{hosts?\}}) }
    end

    munge do |value|
      self.sensitive = true if Array(value).any?(Puppet::Pops::Types::PSensitiveType::Sensitive)
      unwrap(value)
    end

    # The words of the command, with those that are Sensitive unwrapped.
    def unwrap(value)
      Array(value).map { |word| word.is_a?(Puppet::Pops::Types::PSensitiveType::Sensitive) ? word.unwrap : word }
    end
  end

  # Parameters that need again-fleet, so the provider `command` rejects them.
  fleets_own = %i[where class environment delta ttl parallel stop_after_failures]

  validate do
    raise ArgumentError, 'nothing says which nodes: give hosts, where, class or environment' if %i[hosts where class environment].all? { |key| self[key].nil? }

    case self[:provider]
    when :command
      raise ArgumentError, 'the provider command needs a command' unless self[:command]

      given = fleets_own.reject { |key| self[key].nil? } + %i[wait after_run].select { |key| self[key] }
      raise ArgumentError, "the provider command knows hosts only, not #{given.join(', ')}" if given.any?
    when :etcd, :nats
      raise ArgumentError, 'a command needs provider => command' if self[:command]

      raise ArgumentError, 'parallel needs etcd: on NATS a key that is renewed loses its place' if self[:parallel] && self[:provider] == :nats
    end
    raise ArgumentError, 'stop_after_failures needs parallel: nodes that begin all together cannot be stopped' if self[:stop_after_failures] && !self[:parallel]
  end

  # Marks the command as Sensitive if Puppet has unwrapped it. Puppet itself does that for properties only; for a parameter it warns.
  def set_sensitive_parameters(names) # rubocop:disable Naming/AccessorMethodName
    parameter(:command).sensitive = true if names.include?(:command)
    super(names - [:command])
  end

  # Sends the trigger. Puppet calls this when a resource that notifies this one has changed; never under noop.
  def refresh
    (after_run? && provider.respond_to?(:fire_later)) ? provider.fire_later : provider.fire
  end
end
