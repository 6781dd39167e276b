# frozen_string_literal: true

require 'spec_helper'
require 'facter'
require 'puppet'

describe 'the fact again_fleet' do
  before { Facter.clear }
  after { Facter.clear }

  def fact
    load File.expand_path('../../../lib/facter/again_fleet.rb', __dir__)
    Facter.value(:again_fleet)
  end

  it 'tells the certname of this run, and where its certificates are' do
    expect(fact).to eq(
      'certname' => Puppet[:certname],
      'paths' => { 'cert' => Puppet[:hostcert], 'key' => Puppet[:hostprivkey], 'ca' => Puppet[:localcacert], 'crl' => Puppet[:hostcrl] },
    )
  end

  it 'fails no run' do
    allow(Puppet).to receive(:[]).and_raise(Puppet::Error, 'no such setting')
    expect(fact).to be_nil
  end
end
