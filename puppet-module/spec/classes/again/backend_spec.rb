# frozen_string_literal: true

require 'spec_helper'
require 'support/authority'

describe 'common::again::backend' do
  let(:node) { 'backend1.example.com' }
  let(:ssl) { %w[cert key ca crl].to_h { |name| [name, "/var/lib/puppet/ssl/#{name}.pem"] } }
  let(:fleet_fact) { { 'again_fleet' => { 'certname' => 'backend1.example.com', 'paths' => ssl } } }

  SYSTEMS.slice('debian-12').each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge(fleet_fact) }

      it { is_expected.to compile.with_all_deps }

      it 'is one etcd by default, with the certificates of this node' do
        is_expected.to contain_package('etcd-server').with_ensure('installed')
        is_expected.to contain_service('etcd').with(ensure: 'running', enable: true)
        is_expected.to contain_file('/etc/default/etcd').with_content(%r{^ETCD_INITIAL_CLUSTER="backend1.example.com=https://backend1.example.com:2380"$})
        is_expected.to contain_file('/etc/default/etcd').with_content(%r{^ETCD_CLIENT_CERT_AUTH="true"$}).that_notifies('Service[etcd]')
        is_expected.to contain_file('/etc/default/etcd').with_content(%r{^ETCD_QUOTA_BACKEND_BYTES="536870912"$})
      end

      it 'keeps copies that only the server reads, and tells nobody what is in them' do
        %w[cert key ca crl].each do |name|
          is_expected.to contain_file("/etc/again-backend-etcd/#{name}.pem").with(
            source: "/var/lib/puppet/ssl/#{name}.pem", owner: 'etcd', mode: '0400', show_diff: false, backup: false,
          ).that_comes_before('Service[etcd]')
        end
      end

      context 'with three members' do
        let(:params) { { members: %w[backend1.example.com backend2.example.com backend3.example.com] } }

        it { is_expected.to contain_file('/etc/default/etcd').with_content(%r{=https://backend2.example.com:2380,backend3.example.com=https://backend3}) }

        context 'with NATS' do
          let(:params) { super().merge(backend: 'nats') }

          it { is_expected.to compile.with_all_deps }

          it 'has a route to the two others' do
            routes = %r{^  routes: \["tls://backend2.example.com:6222", "tls://backend3.example.com:6222"\]$}
            is_expected.to contain_file('/etc/nats-server.conf').with_content(routes).that_notifies('Service[nats-server]')
          end
        end
      end

      context 'with NATS' do
        let(:params) { { backend: 'nats', client_port: 4333, quota: 256, listen: '192.0.2.1' } }

        it 'has no cluster, and stores on disk' do
          is_expected.to contain_file('/etc/nats-server.conf').with_content(%r{^listen: "192.0.2.1:4333"$}).without_content(%r{cluster})
          is_expected.to contain_file('/etc/nats-server.conf').with_content(%r{^  max_file_store: 256MB$})
          is_expected.to contain_file('/var/lib/nats').with(owner: 'nats', mode: '0700').that_comes_before('Service[nats-server]')
        end

        it 'starts again for a renewed certificate' do
          is_expected.to contain_file('/etc/again-backend-nats/key.pem').that_notifies('Service[nats-server]')
        end
      end

      context 'without rights' do
        it { is_expected.not_to contain_exec('again-backend-rights') }
        it { is_expected.not_to contain_package('etcd-client') }
      end

      context 'with rights' do
        let(:params) { { permissions: true, nodes: %w[web2.example.com web1.example.com web1.example.com], client_port: 2390 } }

        it { is_expected.to compile.with_all_deps }

        it 'enrols the nodes in etcd once it runs' do
          is_expected.to contain_file('/etc/again-backend-etcd/nodes').with_content("web1.example.com\nweb2.example.com\n")
          is_expected.to contain_file('/etc/again-backend-etcd/enrol').with_mode('0755')
            .with_content(%r{^members='backend1.example.com'\nnamespaces='default'$}).with_content(%r{--endpoints=https://backend1.example.com:2390 })
          is_expected.to contain_exec('again-backend-rights').with(command: ['/etc/again-backend-etcd/enrol'], unless: [['/etc/again-backend-etcd/enrol', '--check']])
            .that_requires(%w[Service[etcd] Package[etcd-client] File[/etc/again-backend-etcd/nodes]])
        end

        context 'with NATS' do
          let(:params) { super().merge(backend: 'nats') }
          let(:rights) { catalogue.resource('File', '/etc/again-backend-nats/rights.conf')[:content] }

          it { is_expected.to compile.with_all_deps }

          it 'knows a node by its certificate' do
            is_expected.to contain_file('/etc/nats-server.conf')
              .with_content(%r{^  verify_and_map: true\n\}\n# .*\ninclude "again-backend-nats/rights.conf"$}).that_requires('File[/etc/again-backend-nats/rights.conf]')
            expect(rights).to include('user: "web1.example.com"').and include('"$KV.again_default_to.*.web2=example=com.>"')
            expect(rights.scan('user: ').length).to eq(2)
          end

          it 'lets a node tell its own events, and read all' do
            web1 = rights.lines.find { |line| line.include?('to.*.web1=example=com.>') }
            expect(web1.scan(%r{"([^"]*_event[^"]*)"}).flatten).to match_array(
              [
                '$KV.again_default_event.web1=example=com.>', '$JS.API.CONSUMER.CREATE.KV_again_default_event.>', '$JS.API.DIRECT.GET.KV_again_default_event.>',
                '$JS.API.STREAM.INFO.KV_again_default_event', '$JS.API.STREAM.CREATE.KV_again_default_event', '$JS.FC.KV_again_default_event.>',
              ],
            )
          end

          it 'has them read without a restart' do
            is_expected.to contain_exec('again-backend-rights').with(command: %w[systemctl reload nats-server], refreshonly: true)
              .that_subscribes_to('File[/etc/again-backend-nats/rights.conf]')
            is_expected.not_to contain_file('/etc/again-backend-nats/rights.conf').that_notifies('Service[nats-server]')
          end
        end

        context 'with a fleet that has a name in Hiera' do
          let(:hiera_config) do
            File.write("#{MODULES}/fleet.yaml", "common::again::fleet::namespace: blue\n")
            hierarchy = [{ 'name' => 'data', 'path' => "#{MODULES}/fleet.yaml", 'data_hash' => 'yaml_data' }]
            File.write("#{MODULES}/hiera.yaml", { 'version' => 5, 'hierarchy' => hierarchy }.to_yaml)
            "#{MODULES}/hiera.yaml"
          end
          let(:params) { super().merge(listen: '192.0.2.2') }

          it { is_expected.to contain_file('/etc/again-backend-etcd/enrol').with_content(%r{^namespaces='blue'$}) }
        end

        context 'without a CA where it is compiled' do
          let(:params) { { permissions: true } }

          it { is_expected.to compile.and_raise_error(%r{set common::again::backend::nodes}) }
        end
      end

      # Catalogs are cached by their parameters and facts: each context listens at an address of its own.
      context 'where Puppet has its CA' do
        include Authority

        let(:superuser) { %r{takes the owner of a certificate named root for its superuser: revoke it with 'puppetserver ca clean --certname root'} }
        let(:rights) { catalogue.resource('File', '/etc/again-backend-nats/rights.conf')[:content].scan(%r{user: "(.*)"}).flatten }

        def fleet(name, others = {})
          { listen: name }.merge(others)
        end

        context 'with a certificate named root' do
          before { authority(entry(1, 'web1.example.com') + entry(2, 'root') + entry(3, 'root'), revoked: [3]) }

          { 'etcd' => {}, 'etcd with rights' => { permissions: true }, 'etcd with a list of nodes' => { permissions: true, nodes: ['web1.example.com'] } }.each do |what, parameters|
            context what do
              let(:params) { fleet('root', parameters) }

              it { is_expected.to compile.and_raise_error(superuser) }
            end
          end

          context 'with NATS, where root is a name like any other' do
            let(:params) { fleet('nats-root', backend: 'nats', permissions: true) }

            it { expect(rights).to eq(%w[root web1.example.com]) }
          end
        end

        context 'with a certificate named root that was revoked and removed, and one that has expired' do
          before { authority(entry(1, 'web1.example.com') + entry(2, 'root') + entry(3, 'root', 2021), revoked: [2]) }

          let(:params) { fleet('cleaned', permissions: true) }

          it { is_expected.to contain_file('/etc/again-backend-etcd/nodes').with_content("web1.example.com\n") }
        end

        context 'with a node that was revoked' do
          before { authority(entry(1, 'web1.example.com') + entry(2, 'web2.example.com'), revoked: [2]) }

          context 'with NATS' do
            let(:params) { fleet('nats', backend: 'nats', permissions: true) }

            it { expect(rights).to eq(['web1.example.com']) }
          end

          context 'with NATS and a list of nodes' do
            let(:params) { fleet('listed', backend: 'nats', permissions: true, nodes: %w[elsewhere.example.com web1.example.com web2.example.com]) }

            it { expect(rights).to eq(%w[elsewhere.example.com web1.example.com]) }
          end
        end
      end

      context 'with a node named root and no CA' do
        let(:params) { { nodes: ['root'] } }

        it { is_expected.to compile.and_raise_error(%r{named root .*leave root out of common::again::backend::nodes}) }
      end

      context 'with paths and names of its own' do
        let(:params) { { certificates: { key: '/k.pem' }, certname: 'etcd.example.com', members: ['etcd.example.com'], package_name: 'etcd', service_name: 'etcd2' } }

        it { is_expected.to contain_file('/etc/again-backend-etcd/key.pem').with_source('/k.pem') }
        it { is_expected.to contain_package('etcd') }
        it { is_expected.to contain_service('etcd2') }
      end

      context 'when absent' do
        let(:params) { { ensure: 'absent' } }

        it { is_expected.to compile.with_all_deps }
        it { is_expected.to contain_service('etcd').with(ensure: 'stopped', enable: false) }
        it { is_expected.to contain_file('/etc/again-backend-etcd').with(ensure: 'absent', force: true, backup: false) }
        it { is_expected.not_to contain_package('etcd-server') }
      end

      {
        'without this node among the members' => [{ members: ['other'] }, %r{backend1.example.com is not among the members other}],
        'with two members' => [{ members: %w[backend1.example.com b] }, %r{2 members can lose no more than 1 can: use one, three or five}],
      }.each do |what, (parameters, message)|
        context what do
          let(:params) { parameters }

          it { is_expected.to compile.and_raise_error(message) }
        end
      end

      context 'without the fact' do
        let(:facts) { os_facts }

        it { is_expected.to compile.and_raise_error(%r{does not tell Puppet's cert: set cert in common::again::backend::certificates}) }
      end
    end
  end

  SYSTEMS.select { |_os, os_facts| os_facts[:os]['family'] == 'Debian' }.each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge(fleet_fact) }

      %w[etcd nats].each do |backend|
        context "with #{backend}" do
          let(:params) { { backend: backend, permissions: true, nodes: ['web1.example.com'] } }

          it { is_expected.to compile.with_all_deps }
          it { is_expected.to contain_package("#{backend}-server") }
        end
      end
    end
  end

  SYSTEMS.select { |_os, os_facts| os_facts[:os]['family'] == 'RedHat' }.each do |os, os_facts|
    context "on #{os}" do
      let(:facts) { os_facts.merge(fleet_fact) }
      let(:params) { { permissions: true, nodes: ['web1.example.com'] } }

      it { is_expected.to compile.with_all_deps }

      it 'has etcd as Fedora has it, whose package has the client' do
        is_expected.to contain_package('etcd').that_comes_before('File[/etc/etcd/etcd.conf]')
        is_expected.to contain_file('/etc/etcd/etcd.conf').with_content(%r{^ETCD_CERT_FILE="/etc/again-backend-etcd/cert.pem"$}).that_notifies('Service[etcd]')
        is_expected.to contain_exec('again-backend-rights').that_requires('Package[etcd]')
        is_expected.not_to contain_package('etcd-client')
        is_expected.not_to contain_file('/etc/default/etcd')
      end

      context 'with NATS' do
        let(:params) { { backend: 'nats' } }

        it { is_expected.to compile.and_raise_error(%r{does not know the nats of RedHat \(\w+\): set common::again::backend::platform}) }
      end
    end
  end

  context 'on a system that the module has no data for' do
    let(:facts) { SYSTEMS['sles-15'].merge(fleet_fact) }

    it { is_expected.to compile.and_raise_error(%r{does not know the etcd of Suse \(SLES\): set common::again::backend::platform}) }

    context 'but the site has' do
      let(:params) { { platform: { etcd: { package: 'etcd', service: 'etcd', user: 'etcd', config: '/etc/sysconfig/etcd' } } } }

      it { is_expected.to compile.with_all_deps }
      it { is_expected.to contain_file('/etc/sysconfig/etcd') }
    end

    context 'when absent' do
      let(:params) { { ensure: 'absent' } }

      it { is_expected.to compile.and_raise_error(%r{does not know the etcd}) }
    end
  end
end
