# frozen_string_literal: true

require 'json'
require 'set'

module PuppetX; end
module PuppetX::Again; end
module PuppetX::Again::Events; end

# Selects the events to publish, and formats them. Values are published only if `values` is set, and never those that Puppet would redact.
class PuppetX::Again::Events::Publisher
  # Limits: `text`, characters of a value or message; `tags`, `classes` and `metrics`, their numbers; `bytes`, the names of all classes.
  def self.bounds
    { text: 512, tags: 64, classes: 2000, bytes: 64 << 10, metrics: 200 }
  end

  # @param wanted
  #   Parameters of the type again_events, by name.
  def initialize(wanted)
    @types = wanted[:types]&.map(&:downcase)
    @titles = wanted[:titles]&.map { |glob| Regexp.new("\\A#{glob.split('*', -1).map { |part| Regexp.escape(part) }.join('.*')}\\z", Regexp::MULTILINE) }
    @tags = wanted[:tags]&.map(&:downcase)
    @only = wanted[:only]&.to_s
    @values = wanted[:values]
    @bounds = self.class.bounds
    @hidden = Set.new
  end

  # Finds the containers of Execs whose titles have to be hidden: the title is part of a command, or contains one, as in a define whose
  # title is a command.
  def look_for_titles(catalog)
    catalog.resources.each do |resource|
      next unless resource.type == :exec

      found = commands(resource)
      resource.pathbuilder[0...-1].each { |name| @hidden << name if titled?(name) && command?(title_of(name), found) }
    end
  end

  # Kind of change that the event stands for; nil if nothing happened, as under noop.
  def change(resource, event, refresh)
    case event.status
    when 'failure' then 'failed'
    when 'success'
      return 'refreshed' if refresh

      service = { 'running' => 'started', 'stopped' => 'stopped' }[event.desired_value.to_s] if resource.type == :service && event.property == 'ensure'
      service || 'changed'
    end
  end

  # Whether the parameters select this event. `event` may be nil: a resource without a suitable provider fails without an event.
  def wanted?(resource, status, event, change)
    return false if @only == 'failed' && change != 'failed'
    return false if @only == 'corrective' && !event&.corrective_change
    return false if @types && !@types.include?(resource.type.to_s)
    return false if @titles && @titles.none? { |title| title.match?(resource.title) }

    @tags.nil? || @tags.any? { |tag| status.tags.include?(tag) }
  end

  # Line of one event, as JSON.
  def line(number, resource, status, event, change)
    title = resource.title
    within = status.containment_path[0...-1]
    tags = status.tags.to_a.first(@bounds[:tags])
    titles = within.select { |name| @hidden.include?(name) }.map { |name| title_of(name) }
    if hidden?(resource)
      titles << title
      within = within.map { |name| title_of(name).include?(title) ? hide(name) : name }
      title = 'hidden'
    end
    unless titles.empty?
      within = within.map { |name| @hidden.include?(name) ? hide(name) : name }
      # Puppet makes these tags from a title.
      tags -= titles.flat_map { |one| [one, *one.split('::')] }.map(&:downcase)
    end
    told = {
      n: number, at: Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond), resource: "#{status.resource_type}[#{title}]", change: change,
      corrective: event&.corrective_change ? true : false, tags: tags, within: within,
    }
    told[:property] = event.property if event&.property
    told[:file] = status.file if status.file
    told[:line] = status.line if status.line
    told.merge!(values(resource, event)) if @values && event && !secret?(resource, event)
    json(event: told)
  end

  # Classes of a catalog within the limits, and the number of the others.
  def classes(all)
    room = @bounds[:bytes]
    told = all.first(@bounds[:classes]).take_while { |name| (room -= name.bytesize) >= 0 }
    { classes: told, more_classes: all.size - told.size }
  end

  # Metrics of the report that are finite numbers, within the limit.
  def metrics(report)
    groups = report.raw_summary.slice('resources', 'time', 'changes', 'events')
    all = groups.flat_map { |group, values| values.map { |name, value| ["#{group}.#{name}", value] } }
    all.select { |_name, value| value.is_a?(Integer) || (value.is_a?(Float) && value.finite?) }.first(@bounds[:metrics]).to_h
  end

  # JSON of the hash. Bytes that are not UTF-8 are replaced.
  def json(told)
    JSON.generate(told)
  rescue JSON::GeneratorError, EncodingError
    JSON.generate(clean(told))
  end

  private

  # Whether the title of an Exec is hidden: one that is a command, or part of one, may hold a secret.
  def hidden?(resource)
    return false unless resource.type == :exec

    command?(resource.title, commands(resource))
  end

  # Commands of an Exec as texts; nil if their encodings are incompatible.
  def commands(resource)
    all = [Array(resource[:command]), *%i[unless onlyif refresh].flat_map { |name| Array(resource[name]) }]
    all.map { |command| Array(command).join(' ') }
  rescue EncodingError
    nil
  end

  def command?(title, commands)
    commands.nil? || commands.any? { |command| command.include?(title) || (!command.empty? && title.include?(command)) }
  rescue EncodingError
    true
  end

  # Whether the name has a title that may be secret. Names of classes and stages are not secret; the class main is 'Main' in a path.
  def titled?(name)
    name.include?('[') && !name.start_with?('Class[', 'Stage[')
  end

  # Title in a reference such as `File[/etc/motd]`. Without a regular expression, because the text may be invalid UTF-8.
  def title_of(name)
    name.partition('[').last.delete_suffix(']')
  end

  def hide(name)
    "#{name.partition('[').first}[hidden]"
  end

  def secret?(resource, event)
    event.redacted || hidden?(resource) || resource.parameters.any? { |_name, parameter| parameter.sensitive } ||
      (resource.class.validattr?(:show_diff) && resource[:show_diff].to_s == 'false')
  end

  # Old value, new value and message of an event, as the property shows them in Puppet's log.
  def values(resource, event)
    property = resource.property(event.property.to_sym) if event.property
    told = { old: shown(property, :is_to_s, event.previous_value), new: shown(property, :should_to_s, event.desired_value), message: event.message }
    told.each_with_object({}) { |(name, value), all| all[name] = value.to_s[0, @bounds[:text]] unless value.nil? }
  end

  def shown(property, how, value)
    return if value.nil?
    return value unless property

    text = property.public_send(how, value).to_s
    (text == "'#{value}'") ? value : text
  end

  def clean(value)
    case value
    when Hash then value.transform_values { |inner| clean(inner) }
    when Array then value.map { |inner| clean(inner) }
    when String then String.new(value, encoding: Encoding::UTF_8).scrub
    else value
    end
  end
end
