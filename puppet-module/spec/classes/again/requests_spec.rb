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

      context 'with deltas and untils at several levels of Hiera' do
        let(:pre_condition) { 'include common::again' }
        let(:check) { ['/usr/bin/test', '-f', '/x'] }
        let(:hiera_config) do
          levels = {
            'node' => { 'common::again::deltas' => { 'cluster' => { 'delta' => '5m' } }, 'common::again::untils' => { 'joined' => { 'check' => check } } },
            'all'  => { 'common::again::deltas' => { 'cluster' => { 'delta' => '2m', 'start_timer_now' => true }, 'soon' => {} } },
          }
          levels.each { |name, data| File.write("#{@dir}/#{name}.yaml", data.to_yaml) }
          hierarchy = levels.keys.map { |name| { 'name' => name, 'path' => "#{@dir}/#{name}.yaml", 'data_hash' => 'yaml_data' } }
          File.write("#{@dir}/hiera.yaml", { 'version' => 5, 'hierarchy' => hierarchy }.to_yaml)
          "#{@dir}/hiera.yaml"
        end

        around { |example| Dir.mktmpdir('again-requests') { |dir| (@dir = dir) && example.run } }

        it 'declares them' do
          is_expected.to compile.with_all_deps
          cluster = catalogue.resource('Common::Again::Delta[cluster]')
          expect([cluster[:delta], cluster[:start_timer_now]]).to eq(['5m', true])
          expect(catalogue.resource('Common::Again::Delta[soon]')[:delta]).to eq(0)
          expect(catalogue.resource('Common::Again::Until[joined]')[:check]).to eq(check)
          is_expected.to contain_exec('again-delta-cluster')
        end
      end
    end
  end
end
