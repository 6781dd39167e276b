# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:etcd, parent: :fleet) do
  desc 'Fires over etcd, by the program again-fleet, whose settings have to name this engine.'

  defaultfor kernel: 'Linux'
end
