# frozen_string_literal: true

require 'spec_helper'

# What it declares is in the spec of the class that includes it.
describe 'common::again::requests' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      it { is_expected.to compile.and_raise_error(%r{is private: include common::again}) }

      context 'when the class includes it' do
        let(:pre_condition) { 'include common::again' }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_exec('again').that_requires('Class[common::again::install]') }
        it { expect(catalogue.resource('exec', 'again').tags.to_a).to include('common::again', 'again') }
      end
    end
  end
end
