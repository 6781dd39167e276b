# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:nats, parent: :fleet) do
  desc 'Sends the trigger over NATS with JetStream with the program again-fleet. The settings of again-fleet have to name this backend.'
end
