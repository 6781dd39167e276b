# frozen_string_literal: true

require 'spec_helper'
require 'digest'

describe 'common::again::on' do
  let(:node) { 'lb1.example.com' }
  let(:title) { 'a web server came up' }
  let(:ssl) { %w[cert key ca crl].to_h { |name| [name, "/ssl/#{name}.pem"] } }
  let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT, 'again_fleet' => { 'certname' => 'lb1.example.com', 'paths' => ssl }) }
  let(:fleet) { "endpoints => ['etcd1.example.com'], accept => ['web*.example.com']" }
  let(:pre_condition) { "class { 'common::again::fleet': #{fleet} }" }
  let(:least) { { 'resource' => 'Service[httpd]' } }
  let(:params) { least }
  let(:rule) { catalogue.resources.find { |one| one.type == 'File' && one.title.end_with?('.toml') && one.title.include?('again-fleet.d/') } }
  # Without the line that says whose it is.
  let(:written) { rule[:content].lines.drop(1).join }

  context 'as in the example' do
    let(:params) { { 'resource' => 'Service[httpd]', 'class' => 'roles::frontend_web', 'change' => 'started' } }

    it { is_expected.to compile.with_all_deps }
    it { is_expected.to contain_class('common::again::fleet') }

    it 'writes a file of its own, and has it read' do
      is_expected.to contain_file("/etc/again-fleet.d/a-web-server-came-up-#{Digest::SHA256.hexdigest(title)[0, 12]}.toml")
        .with(ensure: 'file', owner: 'root', group: 'root', mode: '0644').that_notifies('Exec[again-fleet-rules]').that_requires('File[/etc/again-fleet.d]')
      expect(written).to eq(<<~TOML)
        name = "a web server came up"
        resource = "Service[httpd]"
        change = ["started"]
        class = "roles::frontend_web"
      TOML
      expect(rule[:content]).to start_with('# Written by Puppet (common::again::on)')
    end
  end

  context 'with all of a run' do
    let(:params) do
      {
        'change' => %w[started refreshed started], 'class' => '::Roles::Web', 'where' => { 'role' => 'web', 'cores' => 4, 'is_virtual' => true, 'os.name' => '~x', 'a' => 'b=~c' },
        'environment' => 'production', 'own' => true, 'delta' => '010m',
      }
    end

    it 'writes it' do
      expect(written).to eq(<<~TOML)
        name = "a web server came up"
        change = ["started", "refreshed"]
        class = "roles::web"
        where = ["role=web", "cores=4", "is_virtual=true", "os.name= ~x", "a=b=~c"]
        environment = "production"
        own = true
        delta = 600
      TOML
    end
  end

  context 'with a program' do
    let(:params) { least.merge('where' => ['uptime>10', 'hostname=~^web'], 'command' => ['/bin/tell "it"', "a\nb"], 'timeout' => '1h') }

    it 'writes it' do
      expect(written).to eq(<<~'TOML')
        name = "a web server came up"
        resource = "Service[httpd]"
        where = ["uptime>10", "hostname=~^web"]
        command = ["/bin/tell \"it\"", "a\nb"]
        timeout = 3600
      TOML
    end

    context 'as a string' do
      let(:params) { least.merge('command' => '/bin/tell  --to ops', 'timeout' => 10) }

      it { expect(written).to include("command = [\"/bin/tell\", \"--to\", \"ops\"]\ntimeout = 10\n") }
    end
  end

  context 'with a Sensitive program' do
    let(:params) { least.merge('command' => sensitive('/bin/tell password')) }

    it 'has it in a file that others cannot read, and in no report' do
      is_expected.to contain_file(rule.title).with(owner: 'root', group: 'again-fleet', mode: '0640')
      expect(rule.sensitive_parameters).to eq([:content])
      expect(catalogue.resource(rule.ref)[:content]).to include('command = ["/bin/tell", "password"]')
    end
  end

  context 'with hostile text' do
    let(:title) { "../../etc/passwd\"] 'x' \\ # ü \u202e" }
    let(:params) { { 'resource' => "File[/x\"]\\ # 'y'\u007f*]".delete("\u007f"), 'where' => { 'role' => "a\"]\\ #'" } } }

    it 'stays in its directory, and in its strings' do
      expect(rule.title).to match(%r{\A/etc/again-fleet\.d/etc-passwd-x-[0-9a-f]{12}\.toml\z})
      expect(written).to include('resource = "File[/x\\"]\\\\ # \'y\'*]"', 'where = ["role=a\\"]\\\\ #\'"]')
      expect(written.lines.size).to eq(3)
    end
  end

  it 'has another file for each of what looks the same' do
    names = ['a b', 'a-b', 'A b', '??', ' ', 'ü' * 64].map { |name| Digest::SHA256.hexdigest(name)[0, 12] }
    expect(names.uniq.size).to eq(6)
  end

  context 'with a name of blanks only' do
    let(:title) { '??' }

    it { expect(rule.title).to match(%r{\A/etc/again-fleet\.d/-[0-9a-f]{12}\.toml\z}) }
  end

  context 'with two rules' do
    let(:pre_condition) { super() + " common::again::on { 'A web server came up': class => 'x' }" }

    it { is_expected.to compile.with_all_deps }
  end

  context 'when absent' do
    let(:params) { least.merge('ensure' => 'absent') }

    it { is_expected.to compile.with_all_deps }
    it { expect(rule[:ensure].to_s).to eq('absent') }
  end

  context 'with the class absent' do
    let(:fleet) { 'ensure => absent' }

    it { is_expected.to compile.with_all_deps }
    it { expect(rule).to be_nil }
  end

  {
    'nothing' => [{}, %r{common::again::on: 'a web server came up': this would be met by every event of every node: set resource, change or class}],
    'facts only' => [{ 'where' => ['role=web'] }, %r{set resource, change or class}],
    'a program and a delta' => [{ 'change' => 'failed', 'command' => ['/bin/x'], 'delta' => 1 }, %r{set delta, with which Puppet runs, or command, but not both}],
    'a timeout of nothing' => [{ 'change' => 'failed', 'timeout' => 1 }, %r{timeout is that of a program: set command too, or leave timeout out}],
    'a program that has no time' => [{ 'change' => 'failed', 'command' => ['/bin/x'], 'timeout' => '0' }, %r{timeout is 0: choose one from 1 to 3600 seconds}],
    'a program that has a day' => [{ 'change' => 'failed', 'command' => ['/bin/x'], 'timeout' => '1d' }, %r{timeout is 1d: choose one from 1 to 3600 seconds}],
    'a delta of days' => [{ 'change' => 'failed', 'delta' => '25h' }, %r{delta is 25h: choose one from 0 to 86400 seconds}],
  }.each do |what, (given, error)|
    context "with #{what}" do
      let(:params) { given }

      it { is_expected.to compile.and_raise_error(error) }
    end
  end

  ["two\nlines", 'x' * 65].each do |name|
    context "with the title #{name.inspect}" do
      let(:title) { name }

      it { is_expected.to compile.and_raise_error(%r{this cannot be the name of a rule: choose a title of at most 64 characters}) }
    end
  end

  {
    'resource'    => ['', 'httpd', 'Service[]', "Service[a\nb]", 7],
    'change'      => ['gone', [], %w[started gone]],
    'class'       => ['', 'a b', 'a::', ['a']],
    'where'       => [{}, [], 'role=web', ['role'], { 'a' => ['b'] }],
    'environment' => ['', 'a b'],
    'own'         => ['yes'],
    'delta'       => [-1, 'soon'],
    'command'     => ['', [], 'tell', ['tell'], "/bin/tell 'a'", ["/bin/tell\n"], ['/bin/x', "a\0"], ['/bin/x', '']],
    'timeout'     => [-1, 'soon'],
  }.each do |name, values|
    values.each do |value|
      context "with #{name} => #{value.inspect}" do
        let(:params) { super().merge(name => value) }

        it { is_expected.to compile.and_raise_error(%r{parameter '#{name}'}) }
      end
    end
  end
end
