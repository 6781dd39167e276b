#!/usr/bin/env ruby
# frozen_string_literal: true

# Writes REFERENCE.md of a Puppet module from the tags above its classes, defines, functions and types, in the layout of puppet-strings,
# which Debian does not have. Names, types and defaults come from Puppet's own parser, so they cannot differ from the code.
#
#   reference.rb MODULE           write MODULE/REFERENCE.md
#   reference.rb --check MODULE   fail if it is not what would be written
#
# A class or define without @summary, @api or @example, a parameter without @param, and a @param without a parameter are errors.

require 'puppet'
require 'yaml'

# One documented thing of the module.
class Item
  KINDS = {
    'HostClassDefinition' => :class, 'ResourceTypeDefinition' => :define, 'FunctionDefinition' => :function, 'TypeAlias' => :type
  }.freeze

  attr_reader :kind, :name, :parameters, :tags, :text, :value

  def initialize(definition, file, lines)
    @kind = KINDS.fetch(definition.class.name.split('::').last)
    @name = definition.name
    @where = file
    @parameters = definition.respond_to?(:parameters) ? definition.parameters : []
    # The parser has no extent for an alias's value; a file holds one alias.
    @value = squeeze(lines[definition.line - 1..].join.sub(/\Atype [\w:]+ = /, '').strip) if @kind == :type
    read(comment(lines, definition.line))
  end

  def private?
    tags['api']&.first&.first == 'private'
  end

  def summary
    tags.fetch('summary', [['', '']]).first.join(' ').split.join(' ')
  end

  def documentation(parameter)
    tags.fetch('param', []).find { |head, _| head == parameter.name }&.last
  end

  def examples
    tags.fetch('example', [])
  end

  def type(parameter)
    parameter.type_expr ? source(parameter.type_expr) : 'Any'
  end

  def default(parameter, data)
    return "`#{source(parameter.value)}`" if parameter.value

    key = "#{name}::#{parameter.name}"
    "`#{data[key].inspect}` (data/common.yaml)" if data.key?(key)
  end

  def source(expression)
    squeeze(expression.locator.extract_text(expression.offset, expression.length))
  end

  def complaints
    found = []
    found << 'no @summary' if summary.empty?
    if kind != :type
      found << 'no @api' unless tags.key?('api')
      found << 'no @example' if examples.empty?
      declared = parameters.map(&:name)
      documented = tags.fetch('param', []).map(&:first)
      found.concat((declared - documented).map { |name| "no @param #{name}" })
      found.concat((documented - declared).map { |name| "@param #{name} without a parameter" })
      found.concat(tags.fetch('param', []).select { |_, body| body.empty? }.map { |name, _| "nothing said of #{name}" })
      found.concat(parameters.reject(&:type_expr).map { |parameter| "no type for #{parameter.name}" })
    end
    found.map { |complaint| "#{@where}: #{name}: #{complaint}" }
  end

  private

  def squeeze(code)
    code.gsub(/\s*\n\s*/, ' ').gsub(/\[ /, '[').gsub(/,? \]/, ']')
  end

  def comment(lines, line)
    above = lines[0...line - 1].reverse.take_while { |text| text.start_with?('#') }.reverse
    above.map { |text| text.sub(/\A# ?/, '').chomp }
  end

  # @tag head, and its text in the indented lines below.
  def read(comment)
    @tags = {}
    text = []
    current = text
    comment.each do |line|
      if (match = line.match(/\A@(\w+)\s*(.*)\z/))
        body = []
        (@tags[match[1]] ||= []) << [match[2], body]
        current = body
      elsif line.start_with?('  ') || line.empty?
        current << (current.equal?(text) ? line : line.sub(/\A  /, ''))
      else
        current = text
        current << line
      end
    end
    @text = text.join("\n").strip
    @tags.each_value { |entries| entries.map! { |head, body| [head, body.join("\n").strip] } }
  end
end

def items(root)
  parser = Puppet::Pops::Parser::EvaluatingParser.new
  Dir.glob("#{root}/{manifests,functions,types}/**/*.pp").sort.flat_map do |file|
    lines = File.readlines(file, encoding: 'UTF-8')
    parser.parse_file(file).definitions.map { |definition| Item.new(definition, file.delete_prefix("#{root}/"), lines) }
  end
end

# Functions or types in Ruby: the name and the first comment.
def in_ruby(root, directory, pattern)
  Dir.glob("#{root}/lib/puppet/#{directory}/**/*.rb").sort.map do |file|
    source = File.read(file, encoding: 'UTF-8')
    name = source[pattern, 1]
    summary = source[/^# @summary\n#\s+(.+)$/, 1]
    abort "#{file}: no @summary" unless summary
    abort "#{file}: what is public in Ruby is more than this generator knows" unless source.match?(/^# @api private$/)
    [name, summary]
  end
end

def anchor(name)
  name.gsub('::', '--')
end

def contents(title, singular, items, extra_private = [])
  public_items, private_items = items.reject { |item| item.kind == :type }.partition { |item| !item.private? }
  hidden = private_items.map { |item| [item.name, item.summary] } + extra_private
  lines = []
  if public_items.any?
    lines << "#### Public #{singular}" << '' if hidden.any?
    public_items.each { |item| lines << "* [`#{item.name}`](##{anchor(item.name)}): #{item.summary}" }
  end
  if hidden.any?
    lines << '' if public_items.any?
    lines << "#### Private #{singular}" << ''
    hidden.each { |name, summary| lines << "* `#{name}`: #{summary}" }
  end
  lines.empty? ? [] : ["### #{title}", '', *lines, '']
end

def details(item, data)
  word = { class: 'class', define: 'defined type', function: 'function' }.fetch(item.kind)
  lines = ["### <a name=\"#{anchor(item.name)}\"></a>`#{item.name}`", '', item.text.empty? ? item.summary : item.text, '']
  lines << '#### Examples' << ''
  item.examples.each { |title, code| lines << "##### #{title.empty? ? 'Usage' : title}" << '' << '```puppet' << code << '```' << '' }
  return lines if item.parameters.empty?

  lines << '#### Parameters' << '' << "The following parameters are available in the `#{item.name}` #{word}:" << ''
  item.parameters.each { |parameter| lines << "* [`#{parameter.name}`](#-#{anchor(item.name)}--#{parameter.name})" }
  lines << ''
  item.parameters.each do |parameter|
    lines << "##### <a name=\"-#{anchor(item.name)}--#{parameter.name}\"></a>`#{parameter.name}`" << ''
    lines << "Data type: `#{item.type(parameter)}`" << '' << item.documentation(parameter) << ''
    default = item.default(parameter, data)
    lines << "Default value: #{default}" << '' if default
  end
  lines
end

def type_details(item)
  ["### <a name=\"#{anchor(item.name)}\"></a>`#{item.name}`", '', item.summary, '', "Alias of `#{item.value}`", '']
end

def reference(root)
  all = items(root)
  complaints = all.flat_map(&:complaints)
  abort complaints.join("\n") if complaints.any?

  defaults = "#{root}/data/common.yaml"
  data = File.exist?(defaults) ? YAML.safe_load(File.read(defaults, encoding: 'UTF-8')) : {}
  by = Hash.new { |_hash, _kind| [] }.merge(all.group_by(&:kind))
  types = by[:type]
  lines = ['# Reference', '', '<!-- Generated by tests/module/reference.rb. Change the comments in the module, not this file. -->', '',
           '## Table of Contents', '']
  lines += contents('Classes', 'Classes', by[:class])
  lines += contents('Defined types', 'Defined types', by[:define])
  lines += contents('Functions', 'Functions', by[:function], in_ruby(root, 'functions', /create_function\(:'?([\w:]+)/))
  lines += contents('Resource types', 'Resource types', [], in_ruby(root, 'type', /newtype\(:(\w+)/))
  lines += ['### Data types', '', *types.map { |item| "* [`#{item.name}`](##{anchor(item.name)}): #{item.summary}" }, ''] if types.any?
  { 'Classes' => :class, 'Defined types' => :define, 'Functions' => :function }.each do |title, kind|
    shown = by[kind].reject(&:private?)
    lines += ["## #{title}", ''] + shown.flat_map { |item| details(item, data) } if shown.any?
  end
  lines += ['## Data types', ''] + types.flat_map { |item| type_details(item) } if types.any?
  "#{lines.join("\n").rstrip}\n"
end

check = ARGV.delete('--check')
root = ARGV.fetch(0) { abort 'usage: reference.rb [--check] MODULE' }
target = "#{root}/REFERENCE.md"
wanted = reference(root)
if check
  there = File.exist?(target) ? File.read(target, encoding: 'UTF-8') : ''
  abort "#{target} is not fresh: run #{$PROGRAM_NAME} #{root}" unless there == wanted
else
  File.write(target, wanted)
end
