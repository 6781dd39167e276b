# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:dummy) do
  desc 'Starts nothing and logs what it would have started: for tests of manifests.'

  # Logs the nodes that the trigger selects.
  def fire
    wanted = %i[hosts where class environment].filter_map { |key| "#{key} #{Array(resource[key]).join(', ')}" unless resource[key].nil? }
    resource.notice("the dummy starts nothing; it was to start Puppet on #{wanted.join('; ')}")
  end
end
