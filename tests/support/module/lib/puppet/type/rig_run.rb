require_relative '../../puppet_x/rig/record'

Puppet::Type.newtype(:rig_run) do
  @doc = 'Records the puppet process that applies this catalog, once per run, and never changes anything.'

  newparam(:name, namevar: true)

  newparam(:runs) do
    desc 'The directory to write the record to.'
  end

  newproperty(:recorded) do
    defaultto 'yes'

    def retrieve
      RigRecord.record('catalog', resource[:runs])
      'yes'
    end
  end
end
