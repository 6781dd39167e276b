# frozen_string_literal: true

require 'spec_helper'
require_relative '../support/servers'

describe 'server_with_role' do
  include_context 'with servers'

  fallback = { 'hostname' => 'localhost', 'ipaddress' => '' }

  context 'with servers of that role' do
    let(:puppetdb) { Servers::PuppetDB.new }

    it('is the first') { expect(subject.execute('node', fallback)).to include('certname' => 'web1.test', 'ipaddress' => '10.0.0.1') }
    it('is the fallback where there is none') { is_expected.to run.with_params('db', fallback).and_return(fallback) }
  end

  it 'is the fallback where nobody can be asked, with a warning' do
    is_expected.to run.with_params('node', fallback).and_return(fallback)
    expect(warnings.length).to eq(1)
  end

  it('needs one') { is_expected.to run.with_params('node').and_raise_error(ArgumentError, %r{expects 2 arguments}) }
end
