# frozen_string_literal: true

# What the classes of a fleet have to know of this very run: its certname, and where Puppet keeps its certificates. Nothing in here may
# fail a run.
Facter.add(:again_fleet) do
  setcode do
    next unless defined?(Puppet) && Puppet.respond_to?(:settings)

    files = { 'cert' => :hostcert, 'key' => :hostprivkey, 'ca' => :localcacert, 'crl' => :hostcrl }
    { 'certname' => Puppet[:certname].to_s, 'paths' => files.transform_values { |setting| Puppet[setting].to_s } }
  rescue StandardError => e
    Facter.debug("again_fleet: #{e}")
    nil
  end
end
