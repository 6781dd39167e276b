# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:etcd, parent: :fleet) do
  desc 'Fires over etcd, by the program again-fleet, whose settings have to name this backend.'

  # On every system: one that has no program says so when something notifies the trigger. Without a default Puppet would warn in every run.
  defaultfor kernel: %r{.}
end
