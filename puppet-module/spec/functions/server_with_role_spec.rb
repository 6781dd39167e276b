# frozen_string_literal: true

require 'spec_helper'
require_relative '../support/servers'

describe 'server_with_role' do
  include_context 'with servers'

  none = { 'hostname' => 'localhost', 'ipaddress' => '' }

  context 'with servers of that role' do
    let(:puppetdb) { Servers::PuppetDB.new }

    it('is the first') { expect(subject.execute('node', none)).to include('certname' => 'web1.test', 'ipaddress' => '10.0.0.1') }
    it('is the fallback where there is none') { is_expected.to run.with_params('db', none).and_return(none) }
  end

  it('fails where nobody can tell') { is_expected.to run.with_params('node', none).and_raise_error(Puppet::Error, %r{cannot tell which servers}) }

  context 'with the fallback empty' do
    let(:fallback) { 'empty' }

    it 'is the fallback, with a warning' do
      is_expected.to run.with_params('node', none).and_return(none)
      expect(warnings.length).to eq(1)
    end
  end

  it('needs one') { is_expected.to run.with_params('node').and_raise_error(ArgumentError, %r{expects 2 arguments}) }
end
