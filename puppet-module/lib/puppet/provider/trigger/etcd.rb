# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:etcd, parent: :fleet) do
  desc 'Sends the trigger over etcd with the program again-fleet. The settings of again-fleet have to name this backend.'

  # The default on every system: without the program, the trigger fails when something notifies it. Without a default Puppet would warn in
  # every run.
  defaultfor kernel: %r{.}
end
