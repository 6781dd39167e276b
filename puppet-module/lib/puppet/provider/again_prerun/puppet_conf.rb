# frozen_string_literal: true

require 'puppet/settings/ini_file'

Puppet::Type.type(:again_prerun).provide(:puppet_conf) do
  desc 'Writes the puppet.conf that this run was started with.'

  def exists?
    (resource[:ensure] == :absent) ? !own.nil? : own == resource.command
  end

  def create
    theirs = foreign
    if theirs
      raise Puppet::Error, "#{file} has a prerun_command already ('#{theirs}'): have it call 'again-fleet slot', " \
                           'and set prerun in common::again::fleet::slots to false'
    end
    write { |ini| ini.set('agent', 'prerun_command', resource.command) }
  end

  def destroy
    write { |ini| ini.delete('agent', 'prerun_command') }
  end

  private

  def file
    Puppet[:config]
  end

  def parsed
    @parsed ||= Puppet::Settings::IniFile.parse(File.exist?(file) ? File.read(file, encoding: 'UTF-8') : +'')
  end

  # Value that this type wrote, with any paths; nil if there is none.
  def own
    value = parsed.setting('agent', 'prerun_command')&.value
    value if value&.start_with?(resource.class.mark)
  end

  # Value that this type did not write, from a section that the agent reads; nil if there is none.
  def foreign
    ours = own
    values = %w[agent main].map { |section| parsed.setting(section, 'prerun_command')&.value }
    values.find { |value| value && !value.empty? && value != ours }
  end

  # Replaces the file atomically and keeps its owner and mode. If the path is a link, replaces its target and keeps the link.
  def write
    yield Puppet::Settings::IniFile::Manipulator.new(parsed)
    path = File.exist?(file) ? File.realpath(file) : file
    Puppet::Util.replace_file(path, 0o644) { |out| parsed.write(out) }
    @parsed = nil
  end
end
