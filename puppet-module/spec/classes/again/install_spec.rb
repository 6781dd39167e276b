# frozen_string_literal: true

require 'spec_helper'

# What it declares is in the spec of the class that contains it.
describe 'common::again::install' do
  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge('again' => FACT) }

      it { is_expected.to compile.and_raise_error(%r{is private: include common::again}) }

      context 'when the class contains it' do
        let(:pre_condition) { 'include common::again' }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_file('/usr/local/bin/again').that_comes_before('Exec[again]') }
        it { is_expected.to contain_file('/etc/again.toml').that_comes_before('Exec[again]') }
      end
    end
  end
end
