# frozen_string_literal: true

require 'spec_helper'

# What a site says of its Execs in general must reach none of this module's.
describe 'common::again' do
  # Every attribute that an Exec has, each with a default that a site may have set. One that is missing here is new to Puppet: it belongs into
  # $exec of the class, unless it is among those below.
  site = {
    'provider' => "'shell'", 'path' => "['/nonexistent']", 'logoutput' => 'false', 'loglevel' => "'debug'", 'timeout' => '7', 'tries' => '3',
    'try_sleep' => '3', 'returns' => '[1, 2]', 'tag' => "['x']", 'require' => "Notify['site']", 'before' => "Notify['late']",
    'notify' => "Notify['late']", 'subscribe' => "Notify['site']", 'schedule' => "'never'", 'user' => "'nobody'", 'group' => "'nogroup'",
    'umask' => "'077'", 'cwd' => "'/nonexistent'", 'environment' => "['A=1']", 'refresh' => "'/bin/false'", 'refreshonly' => 'true',
    'creates' => "'/'", 'onlyif' => "'/bin/false'", 'unless' => "'/bin/true'",
  }
  # The command is always there, a class's `stage` is no Exec's; the rest a site may want to say of our Execs too.
  theirs = %w[command stage alias audit noop]

  it 'knows every attribute of an Exec' do
    expect(Puppet::Type.type(:exec).allattrs.map(&:to_s)).to match_array(site.keys + theirs)
  end

  let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT) }
  let(:declarations) do
    "include common::again common::again::delta { 'd': } common::again::until { 'u': check => '/bin/false' } notify { ['site', 'late']: }"
  end

  # As in a catalog without defaults: each attribute of each Exec, as the type sees it.
  def execs(compiled)
    compiled.resources.select { |resource| resource.type == 'Exec' }.to_h do |resource|
      [resource.title, resource.to_hash.transform_values { |value| value.is_a?(Array) ? value.map(&:to_s) : value.to_s }]
    end
  end

  def compiled(manifest)
    Puppet[:code] = manifest
    values = facts.transform_keys(&:to_s)
    in_environment = Puppet::Node::Environment.create(:spec, [MODULES])
    node = Puppet::Node.new('node', facts: Puppet::Node::Facts.new('node', values), environment: in_environment)
    node.merge(values)
    Puppet.override(current_environment: in_environment) { Puppet::Parser::Compiler.compile(node) }
  end

  %w[present absent].each do |state|
    context "with ensure => #{state}" do
      let(:class_declaration) { "class { 'common::again': ensure => #{state} } #{declarations}" }

      it 'leaves no attribute to the site' do
        plain = execs(compiled(class_declaration))
        with = execs(compiled("Exec { #{site.map { |name, value| "#{name} => #{value}" }.join(', ')} } #{class_declaration}"))
        expect(plain.keys).to include('again', 'again-delta-d', 'again-until-u', (state == 'present') ? 'again-directories' : 'again-stop')
        expect(with).to eq(plain)
      end
    end
  end

  # As `noop` says.
  it 'leaves noop to it' do
    expect(execs(compiled("Exec { noop => true } #{declarations}"))['again']).to include(noop: 'true')
  end
end
