# frozen_string_literal: true

# @summary
#   Starts Puppet on other nodes when it is notified
Puppet::Type.newtype(:trigger) do
  @doc = <<~DOC
    @summary Starts Puppet on other nodes when it is notified

    Declaring it does nothing. When another resource has changed and notifies it, Puppet runs on each of the nodes that it names or selects:
    once, after a run that is under way there, and below the cap of that node. As with every resource, Puppet skips the refresh if one of the
    notifying resources has failed, and under noop. What became of the trigger is in its lines in the report; a trigger that could neither be
    sent nor kept fails. If the service of this node is down, the trigger waits on disk for it; with `wait` that is a failure.

    `where`, `class` and `environment` select nodes by what they tell of themselves at that moment, as the class `common::again::fleet` has them
    do, and its lines name those that it came to; the node that fires is left out unless `hosts` names it. That nobody is selected is said, and
    is no failure.

    Resources that have to be written before it fires come before it, by `require`, `before` or `->`; or it fires at the end, with `after_run`.
    With `parallel` it is a rolling run, which nothing has to watch: so many nodes run at a time, and with `stop_after_failures` those that have
    not begun do not once so many have failed.

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
        parallel             => 5,
        stop_after_failures => 2,
      }
  DOC

  newparam(:name, namevar: true) do
    desc <<~DESC
      The name of the trigger. It is part of the key under which each node finds it: fired again before it was taken, the newer one takes the
      older one's place.
    DESC

    validate do |value|
      good = value.to_s.match?(%r{\A[[:print:]]+\z}) && value.to_s.bytesize <= 128
      raise ArgumentError, 'a name has to be a string of printable characters, of 1 to 128 bytes' unless good
    end
  end

  newparam(:hosts, array_matching: :all) do
    desc <<~DESC
      Certnames of the nodes: a string, or an array of strings and of hashes with `certname` or `fqdn`, such as
      `puppetdb_query('inventory[certname] { facts.role = "haproxy" }')` gives. An empty array fires for nobody, and says so.
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

    # Returns the strings, and of each hash its `certname` or `fqdn`.
    def certnames(value)
      [value].flatten.map { |host| (host.is_a?(Hash) && (host['certname'] || host['fqdn'])) || host }
    end
  end

  newparam(:where) do
    desc <<~DESC
      Selects nodes by the facts that they publish, at the moment of firing: a hash of facts and their values, all of which have to hold; or
      strings with one of `=`, `!=`, `<`, `>`, `=~`, such as `'uptime>10'`.
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
    desc 'Selects the nodes whose last catalog had this class, or one of these.'

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
    desc 'How long each node waits at least before it runs: seconds, or a string with a unit, such as `2m`.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a duration" unless value.to_s.match?(duration) }
    munge(&:to_s)
  end

  newparam(:ttl) do
    desc 'How long a node that is away may take it up: seconds, or a string with a unit; at most a day. By default what the settings say, an hour; with `parallel` a day.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a duration" unless value.to_s.match?(duration) }
    munge(&:to_s)
  end

  newparam(:after_run, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc 'Whether it fires when this run has applied all other resources, and not at once: for what later resources of the run still write.'

    defaultto false
  end

  newparam(:parallel) do
    desc <<~DESC
      How many nodes may run at a time: a rolling run. The next begins when one has told how it ended; one that is off holds nobody up. Over etcd.
    DESC

    validate { |value| raise ArgumentError, "#{value.inspect} is not a number of nodes" unless value.to_s.match?(%r{\A[1-9]\d*\z}) }
    munge { |value| Integer(value) }
  end

  newparam(:stop_after_failures) do
    desc 'Once so many nodes have failed, those that have not begun do not. It needs `parallel`.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a number of nodes" unless value.to_s.match?(%r{\A[1-9]\d*\z}) }
    munge { |value| Integer(value) }
  end

  newparam(:wait, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc 'Whether this run waits until all nodes have told how they ended, and the resource fails if one of them failed.'

    defaultto false
  end

  newparam(:command) do
    desc <<~DESC
      With the provider `command`: the program and its arguments, run without a shell. `%{hosts}` stands for all nodes, with commas between
      them; a command with `%{host}` runs once for each. If the array or a word of it is Sensitive, the report shows neither the command nor its output.
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

    # Returns the words, those that are Sensitive too.
    def unwrap(value)
      Array(value).map { |word| word.is_a?(Puppet::Pops::Types::PSensitiveType::Sensitive) ? word.unwrap : word }
    end
  end

  # What only a fleet knows: who has which fact, and how a run elsewhere ended.
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

  # Keeps what Puppet knows of the values that it has unwrapped; of parameters that are no properties it would only warn.
  def set_sensitive_parameters(names) # rubocop:disable Naming/AccessorMethodName
    parameter(:command).sensitive = true if names.include?(:command)
    super(names - [:command])
  end

  # Called when a resource that notifies this one has changed; never under noop.
  def refresh
    (after_run? && provider.respond_to?(:fire_later)) ? provider.fire_later : provider.fire
  end
end
