#!/usr/bin/env ruby
# frozen_string_literal: true

# REFERENCE.md of a Puppet module, by puppet-strings.
#
#   reference.rb MODULE           write MODULE/REFERENCE.md
#   reference.rb --check MODULE   fail if it is not what would be written, or if anything public or private is not described
#
# A warning of puppet-strings is an error. So is what it does not warn of: a class, define or function without @summary or @example, and
# a parameter without a type or of which nothing is said.

require 'fileutils'
require 'json'
require 'open3'
require 'tmpdir'

# What `puppet strings generate` writes with --format markdown and json, in one process.
STRINGS = <<~RUBY
  require 'puppet'
  require 'puppet-strings'
  PuppetStrings.generate(PuppetStrings::DEFAULT_SEARCH_PATTERNS, markdown: true, path: 'markdown')
  PuppetStrings.render_json('json')
RUBY

# REFERENCE.md as it should be, and the same as data. It is generated in a copy, because puppet-strings leaves a database behind.
def strings(root)
  Dir.mktmpdir('again-strings') do |scratch|
    %w[functions lib manifests types].each { |part| FileUtils.cp_r("#{root}/#{part}", scratch) }
    # Ruby's own warnings are about puppet-strings.
    output, status = Open3.capture2e('ruby', '-W0', '-e', STRINGS, chdir: scratch)
    abort output if !status.success? || output.match?(/^\[(warn|error)\]/)
    %w[markdown json].map { |format| File.read("#{scratch}/#{format}", encoding: 'UTF-8') }
  end
end

def complaints(item)
  tags = item.dig('docstring', 'tags') || []
  said = tags.group_by { |tag| tag['tag_name'] }
  found = %w[summary example].reject { |tag| said.key?(tag) }.map { |tag| "no @#{tag}" }
  said.fetch('param', []).each do |param|
    found << "nothing said of #{param['name']}" if param['text'].to_s.empty?
    found << "no type for #{param['name']}" if Array(param['types']).empty?
  end
  found.map { |complaint| "#{item['file']}: #{item['name']}: #{complaint}" }
end

check = ARGV.delete('--check')
root = ARGV.fetch(0) { abort 'usage: reference.rb [--check] MODULE' }
target = "#{root}/REFERENCE.md"
wanted, described = strings(root)
if check
  abort "#{target} is not fresh: run #{$PROGRAM_NAME} #{root}" unless File.exist?(target) && File.read(target, encoding: 'UTF-8') == wanted
  described = JSON.parse(described)
  found = described.values_at('puppet_classes', 'defined_types', 'puppet_functions').flatten.flat_map { |item| complaints(item) }
  found += described['data_type_aliases'].reject { |item| item['docstring']['tags']&.any? { |tag| tag['tag_name'] == 'summary' } }
                                         .map { |item| "#{item['file']}: #{item['name']}: no @summary" }
  abort found.join("\n") if found.any?
else
  File.write(target, wanted)
end
