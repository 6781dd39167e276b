# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::request' do
  let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT) }

  context 'with the class' do
    let(:pre_condition) { 'include common::again' }

    it { is_expected.to run.with_params.and_return(['/usr/local/bin/again', 'run', *PATH_FLAGS]) }
    it { is_expected.to run.with_params('--name=x', '--delta=1').and_return(['/usr/local/bin/again', 'run', '--name=x', '--delta=1', *PATH_FLAGS]) }
    it { is_expected.to run.with_params('').and_raise_error(ArgumentError) }
  end

  context 'with a path of the class' do
    let(:pre_condition) { "class { 'common::again': puppet_paths => { 'lastrunfile' => '/other' } }" }

    it { is_expected.to run.with_params.and_return(['/usr/local/bin/again', 'run', *PATH_FLAGS.reject { |flag| flag.include?('lastrunfile') }]) }
  end

  context 'with a path of the class that is not written' do
    let(:pre_condition) { "class { 'common::again': puppet_paths => { 'lastrunfile' => '/other' }, manage_config => false }" }

    it { is_expected.to run.with_params.and_return(['/usr/local/bin/again', 'run', *PATH_FLAGS]) }
  end

  context 'with the class absent' do
    let(:pre_condition) { "class { 'common::again': ensure => absent }" }

    it 'asks for nothing and says so' do
      is_expected.to run.with_params('--name=x')
        .and_return(['/bin/sh', '-c', 'echo "again: nothing to do: $0"', 'removed from this node (common::again has ensure absent)'])
    end
  end
end
