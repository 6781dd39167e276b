# frozen_string_literal: true

require 'spec_helper'

$LOAD_PATH.unshift File.expand_path('../../../lib', __dir__)

describe 'the type again_on_failure' do
  let(:type) { Puppet::Type.type(:again_on_failure) }
  let(:scratch) { Dir.mktmpdir('again-on-failure') }
  let(:asked) { "#{scratch}/asked" }
  let(:helper) { "#{scratch}/again" }
  let(:messages) { [] }

  before do
    helper_says('again: scheduled: x')
    Puppet[:vardir] = scratch
    Puppet[:statedir] = scratch
    Puppet::Util::Log.newdestination(Puppet::Test::LogCollector.new(messages))
  end

  after do
    Puppet::Util::Log.close_all
    FileUtils.remove_entry(scratch)
  end

  def helper_says(line, status = 0)
    File.write(helper, "#!/bin/sh\necho \"$@\" >> #{asked}\necho '#{line}'\nexit #{status}\n")
    File.chmod(0o755, helper)
  end

  def on_failure(**more)
    type.new(name: 'again-on-failure', command: [helper, 'run', '--name=again-on-failure'], **more)
  end

  def exec(command, **more)
    Puppet::Type.type(:exec).new(name: command.is_a?(Array) ? command.join(' ') : command, command: command, **more)
  end

  def apply(*resources)
    catalog = Puppet::Resource::Catalog.new
    catalog.add_resource(*resources)
    catalog.host_config = true
    catalog.apply.report
  end

  def requests
    File.exist?(asked) ? File.readlines(asked, chomp: true) : []
  end

  def lines(level)
    messages.select { |message| message.level == level && message.source.include?('Again_on_failure') }.map(&:message)
  end

  it 'needs a command that is an absolute path' do
    expect { type.new(name: 'x') }.to raise_error(Puppet::Error, %r{no command})
    expect { type.new(name: 'x', command: %w[again run]) }.to raise_error(Puppet::Error, %r{absolute path})
    expect { type.new(name: 'x', command: ['/again', 7]) }.to raise_error(Puppet::Error, %r{array of strings})
  end

  it 'asks once after failures, in whatever order they come' do
    report = apply(exec('/bin/false'), on_failure, exec('/bin/sh -c "exit 3"'))
    expect(requests).to eq(['run --name=again-on-failure'])
    expect(lines(:notice)).to eq(['again: scheduled: x'])
    expect(report.logs.map(&:message)).to include('again: scheduled: x')
    expect(report.resource_statuses['Again_on_failure[again-on-failure]']).not_to be_changed
  end

  it 'asks after each run of a process' do
    2.times { apply(exec('/bin/false'), on_failure) }
    expect(requests.size).to eq(2)
  end

  it 'asks for nothing without a failure, and changes nothing' do
    report = apply(exec('/bin/true'), on_failure)
    expect(requests).to be_empty
    expect(report.resource_statuses['Again_on_failure[again-on-failure]']).to have_attributes(changed?: false, failed?: false)
  end

  it 'asks although it was skipped for a failed dependency' do
    apply(exec('/bin/false'), on_failure(require: 'Exec[/bin/false]'))
    expect(requests.size).to eq(1)
  end

  it 'asks for nothing under noop' do
    apply(exec('/bin/false', noop: false), on_failure(noop: true))
    expect(requests).to be_empty
  end

  it 'asks for nothing in a run that was told to stop' do
    allow(Puppet::Application).to receive(:stop_requested?).and_return(false, false, false, true)
    apply(on_failure, exec('/bin/false'), exec('/bin/true'))
    expect(requests).to be_empty
  end

  it 'asks for nothing where tags leave it out' do
    Puppet[:tags] = 'other'
    apply(exec('/bin/false', tag: 'other'), on_failure)
    expect(requests).to be_empty
    apply(exec('/bin/false', tag: 'other'), on_failure(tag: 'other'))
    expect(requests.size).to eq(1)
  ensure
    Puppet[:tags] = ''
  end

  it 'asks for nothing if requests are all that failed' do
    helper_says('again: refused: the cap', 1)
    apply(exec([helper, 'run'], provider: 'posix'), on_failure)
    expect(requests).to eq(['run'])
    expect(lines(:err)).to be_empty
  end

  it 'fails with the line of a request that is refused' do
    helper_says('again: refused: the cap', 1)
    report = apply(exec('/bin/false'), on_failure)
    expect(lines(:err)).to eq(['again: refused: the cap'])
    expect(report.resource_statuses['Again_on_failure[again-on-failure]']).to be_failed
  end

  it 'says so if a request fails without a word' do
    File.write(helper, "#!/bin/sh\nexit 7\n")
    apply(exec('/bin/false'), on_failure)
    expect(lines(:err)).to eq(["#{helper} ended with 7"])
  end

  it 'says so if there is no helper' do
    File.delete(helper)
    apply(exec('/bin/false'), on_failure)
    expect(lines(:err)).to contain_exactly(%r{\Aagain: error: cannot ask for a run after this one's failures: there is no })
  end

  it 'does not wait for a helper that hangs' do
    File.write(helper, "#!/bin/sh\nexec sleep 60\n")
    allow(type.provider(:at_the_end)).to receive(:timeout).and_return(1)
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    apply(exec('/bin/false'), on_failure)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 30
    expect(lines(:err)).to contain_exactly(%r{cannot ask for a run})
  end
end
