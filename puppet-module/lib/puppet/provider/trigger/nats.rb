# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:nats, parent: :fleet) do
  desc 'Fires over NATS with JetStream, by the program again-fleet, whose settings have to name this backend.'
end
