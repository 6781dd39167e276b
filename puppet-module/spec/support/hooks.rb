# frozen_string_literal: true

require 'puppet'
require 'puppet/configurer'
require 'puppet/resource/status'
require 'puppet/settings/ini_file'
require 'puppet/transaction/event_manager'
require 'puppet/transaction/report'

# Parts of Puppet's inside on which the module builds. `ruby hooks.rb` names those that the Puppet of this machine lacks, one a line.
module Hooks
  METHODS = {
    Puppet::Type                             => %i[pre_run_check],
    Puppet::Transaction                      => %i[perform_pre_run_checks],
    Puppet::Transaction::EventManager        => %i[process_events],
    Puppet::Transaction::Report              => %i[resource_statuses finalize_report],
    Puppet::Resource::Status                 => %i[fail_with_event dependency_failed? failed_to_restart?],
    Puppet::Settings::IniFile                => %i[setting],
    Puppet::Settings::IniFile::Manipulator   => %i[set delete],
    Puppet::Settings::IniFile.singleton_class => %i[parse],
  }.freeze
  # What these methods call, according to the files that they are in.
  CALLS = {
    Puppet::Transaction.instance_method(:evaluate) => %w[.post_resource_eval .prefetch .pre_run_check .process_events],
    Puppet::Configurer.instance_method(:run)       => %w[.finalize_report],
  }.freeze

  module_function

  def missing
    methods = METHODS.flat_map do |owner, names|
      names.reject { |name| owner.method_defined?(name) || owner.private_method_defined?(name) }.map { |name| "#{owner}##{name}" }
    end
    calls = CALLS.flat_map do |method, names|
      text = File.read(method.source_location.first)
      names.reject { |name| text.include?(name) }.map { |name| "a call of #{name} in #{method.owner}" }
    end
    methods + calls
  end
end

puts Hooks.missing if $PROGRAM_NAME == __FILE__
