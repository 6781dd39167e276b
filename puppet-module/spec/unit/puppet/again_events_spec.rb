# frozen_string_literal: true

require 'spec_helper'

require 'socket'

$LOAD_PATH.unshift File.expand_path('../../../lib', __dir__)

describe 'the type again_events' do
  let(:type) { Puppet::Type.type(:again_events) }
  let(:scratch) { Dir.mktmpdir('again-events') }
  let(:spool) { "#{scratch}/spool" }
  let(:messages) { [] }

  before do
    Dir.mkdir(spool)
    Puppet[:vardir] = scratch
    Puppet[:statedir] = scratch
    Puppet::Util::Log.newdestination(Puppet::Test::LogCollector.new(messages))
  end

  after do
    PuppetX::Again::Events.instance_variable_set(:@run, nil)
    Puppet::Util::Log.close_all
    FileUtils.remove_entry(scratch)
  end

  def resource(kind, name, **more)
    Puppet::Type.type(kind).new(name: name, **more)
  end

  def exec(name, **more)
    resource(:exec, name, **more)
  end

  def catalog_of(*resources, host_config: true)
    catalog = Puppet::Resource::Catalog.new('web1', Puppet::Node::Environment.remote(:shop))
    catalog.add_class('settings', 'profile::lb')
    catalog.add_resource(*resources)
    catalog.host_config = host_config
    catalog
  end

  # Applies these and the resource again_events, last, and ends the report as a run does.
  def apply(*resources, host_config: true, **more)
    watching = type.new({ name: 'this node', spool: spool, socket: "#{scratch}/socket", helper: '/nonexistent' }.merge(more))
    finished(catalog_of(*resources, watching, host_config: host_config))
  end

  def finished(catalog)
    report = catalog.apply.report
    report.finalize_report
    report
  end

  def files
    Dir.children(spool).sort
  end

  # The lines of the newest file, each by its one key.
  def lines
    text = File.read("#{spool}/#{files.last}")
    expect(text).to end_with("\n")
    text.lines.map { |line| JSON.parse(line) }
  end

  def events
    lines.map { |line| line['event'] }.compact
  end

  def told
    events.map { |event| event.values_at('n', 'resource', 'change') }
  end

  def ended
    lines.last.fetch('ended')
  end

  # Of these events: the resources may have others.
  def warnings
    messages.select { |message| message.level == :warning && message.message.include?('events') }.map(&:message)
  end

  it 'tells each change, failure and refresh in their order, and how the run began and ended' do
    before = Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)
    report = apply(
      exec('first', command: '/bin/true', notify: 'Exec[again and again]'), exec('again and again', command: '/bin/test -d /', refreshonly: true),
      exec('wrong', command: '/bin/false'), exec('quiet', command: '/bin/false', onlyif: '/bin/false'),
      resource(:file, "#{scratch}/file", content: 'text', mode: '0600'), exec('of the wrong', command: '/bin/true', require: 'Exec[wrong]')
    )
    expect(told).to eq([
                         [1, 'Exec[first]', 'changed'], [2, 'Exec[again and again]', 'refreshed'], [3, 'Exec[wrong]', 'failed'], [4, "File[#{scratch}/file]", 'changed'],
                       ])
    expect(events.map { |event| event['property'] }).to eq(['returns', nil, 'returns', 'ensure'])
    expect(lines.first).to eq('begun' => {
                                'at' => lines.first['begun']['at'], 'environment' => 'shop', 'puppet' => Puppet.version, 'origins' => [], 'lost' => 0,
                              })
    expect(ended).to include('n' => 5, 'status' => 'failed', 'classes' => ['settings', 'profile::lb'], 'dropped' => 0)
    expect(ended['metrics']).to include('resources.failed' => 1, 'changes.total' => 3, 'events.failure' => 1)
    expect(ended['metrics'].values).to all(be_a(Numeric))
    times = lines.map { |line| line.values.first['at'] }
    expect(times).to eq(times.sort)
    expect(times.first).to be_between(before, before + 60_000)
    expect(report.resource_statuses['Again_events[this node]']).to have_attributes(changed: false, failed: false, out_of_sync: false)
    expect(warnings).to be_empty
  end

  it 'names a file by the time and an id, for the group to read, and leaves no lock' do
    File.umask(0o077).tap do |umask|
      apply(exec('first', command: '/bin/true'))
    ensure
      File.umask(umask)
    end
    expect(files).to contain_exactly(%r{\A\d{13}-\h{32}\z})
    expect(File.stat("#{spool}/#{files.first}").mode & 0o7777).to eq(0o640)
    File.open("#{spool}/#{files.first}") { |file| expect(file.flock(File::LOCK_EX | File::LOCK_NB)).to eq(0) }
  end

  it 'locks a file before it has the name by which the service looks for it' do
    named = []
    allow(File).to receive(:rename).and_wrap_original do |rename, from, to|
      File.open(from) { |file| named << [File.basename(from)[0, 4], file.flock(File::LOCK_SH | File::LOCK_NB)] }
      rename.call(from, to)
    end
    apply(exec('/bin/true'))
    expect(named).to include(['new-', false])
  end

  it 'makes its file anew, and follows no link that somebody puts in its place' do
    target = "#{scratch}/target"
    allow(SecureRandom).to receive(:hex).and_return('0' * 32)
    allow(Process).to receive(:clock_gettime).and_call_original
    allow(Process).to receive(:clock_gettime).with(Process::CLOCK_REALTIME, :millisecond).and_return(1_700_000_000_000)
    File.symlink(target, "#{spool}/new-1700000000000-#{'0' * 32}")
    apply(exec('/bin/true'))
    expect(File).not_to exist(target)
    expect(warnings.join).to include('not all events of this run are told')
  end

  it 'has each line in the file while the run goes on, and the lock' do
    saw = "#{scratch}/saw"
    look = "flock -n #{spool}/* true || echo locked >#{saw}; cat #{spool}/* >>#{saw}"
    apply(exec('first', command: '/bin/true', before: 'Exec[look]'), exec('look', command: ['/bin/sh', '-c', look]))
    expect(File.readlines(saw, chomp: true).map { |line| line[0, 16] }).to eq(['locked', '{"begun":{"at":1', '{"event":{"n":1,'])
  end

  it 'tells where a resource is, with its tags' do
    apply(exec('first', command: '/bin/true', tag: 'shop').tap { |first| first.file = '/site.pp' and first.line = 7 })
    expect(events.first).to include('file' => '/site.pp', 'line' => 7, 'tags' => include('exec', 'shop', 'first'), 'within' => [], 'corrective' => false)
  end

  it 'rings for each line, and never waits' do
    bell = Socket.new(:UNIX, :DGRAM)
    bell.bind(Socket.pack_sockaddr_un("#{scratch}/socket"))
    apply(*(1..700).map { |number| resource(:notify, "notice #{number}") })
    expect(events.size).to eq(700)
    rung = 0
    rung += 1 until bell.recv_nonblock(9, exception: false) == :wait_readable
    expect(rung).to be_between(5, 700)
    expect(warnings).to be_empty
  ensure
    bell&.close
  end

  it 'tells a service that was started or stopped' do
    %w[up down].each { |name| File.write("#{scratch}/#{name}", "#!/bin/sh\nexit 0\n", perm: 0o755) }
    service = { provider: 'base', start: "#{scratch}/up", stop: "#{scratch}/down" }
    apply(resource(:service, 'a', ensure: 'running', status: '/bin/false', **service), resource(:service, 'b', ensure: 'stopped', status: '/bin/true', **service))
    expect(told).to eq([[1, 'Service[a]', 'started'], [2, 'Service[b]', 'stopped']])
  end

  it 'tells a refresh that failed' do
    apply(exec('first', command: '/bin/true', notify: 'Exec[last]'), exec('last', command: '/bin/false', refreshonly: true))
    expect(told.last).to eq([2, 'Exec[last]', 'failed'])
    expect(ended).to include('status' => 'failed')
  end

  it 'tells the end what failed without ever being evaluated' do
    apply(resource(:notify, 'hello'), Puppet::Type.type(:package).new(name: 'x', provider: 'windows'))
    expect(told).to eq([[1, 'Notify[hello]', 'changed'], [2, 'Package[x]', 'failed']])
  end

  it 'tells the end of a run without events, and asks nobody where it came from' do
    File.write("#{scratch}/again", "#!/bin/sh\ntouch #{scratch}/asked\n", perm: 0o755)
    apply(helper: "#{scratch}/again")
    expect(lines.map(&:keys)).to eq([['begun'], ['ended']])
    expect(ended).to include('n' => 1, 'status' => 'unchanged')
    expect(File).not_to exist("#{scratch}/asked")
  end

  it 'tells who asked for the run, and asks once' do
    origins = [{ 'id' => 'a' * 32, 'kind' => 'trigger', 'path' => ['web1'] }]
    File.write("#{scratch}/status", JSON.generate(this_run: { origin: { origins: origins } }))
    File.write("#{scratch}/again", "#!/bin/sh\necho \"$*\" >>#{scratch}/asked\ncat #{scratch}/status\nexit 3\n", perm: 0o755)
    apply(resource(:notify, 'a'), resource(:notify, 'b'), helper: "#{scratch}/again")
    expect(lines.first['begun']['origins']).to eq(origins)
    expect(File.read("#{scratch}/asked")).to eq("status --json --this-run\n")
  end

  it 'does without a helper that says something else' do
    ['{"this_run":null}', '{"this_run":{"target":"x"}}', '{"this_run":{"origin":null}}'].each do |answer|
      File.write("#{scratch}/again", "#!/bin/sh\necho '#{answer}'\n", perm: 0o755)
      apply(resource(:notify, 'a'), helper: "#{scratch}/again")
      expect(lines.first['begun'].slice('origins', 'unknown')).to eq('origins' => [])
    end
    expect(messages.map(&:message)).not_to include(match(%r{who asked for it}))
  end

  it 'knows that nobody could say who asked for the run, and warns' do
    ['[]', 'no', '', '7', '{}', '{"this_run":{"origin":{"origins":7}}}', '{"this_run":{"origin":{}}}'].each do |answer|
      File.write("#{scratch}/again", "#!/bin/sh\necho '#{answer}'\n", perm: 0o755)
      messages.clear
      expect(apply(resource(:notify, 'a'), helper: "#{scratch}/again").status).to eq('changed')
      expect(lines.first['begun']).to include('origins' => [], 'unknown' => true)
      expect(messages.map(&:message)).to include(match(%r{\Ano rule of another node reacts to this run: .* does not say who asked for it}))
    end
  end

  it 'waits no longer than a second for who asked for the run' do
    File.write("#{scratch}/again", "#!/bin/sh\nexec sleep 60\n", perm: 0o755)
    before = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    apply(resource(:notify, 'a'), helper: "#{scratch}/again")
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - before).to be < 30
    expect(lines.first['begun']).to include('unknown' => true)
  end

  context 'with what is not to be watched' do
    it 'writes nothing under noop' do
      apply(exec('first', command: '/bin/true', noop: true), noop: true)
      expect(files).to be_empty
    end

    it 'tells nothing of a resource that is noop' do
      apply(exec('first', command: '/bin/true', noop: true, notify: 'Exec[last]'), exec('last', command: '/bin/true', refreshonly: true))
      expect(told).to be_empty
    end

    it 'writes nothing of what is no catalog of the node' do
      apply(exec('first', command: '/bin/true'), host_config: false)
      expect(files).to be_empty
    end

    it 'writes nothing in a server' do
      allow(Puppet.run_mode).to receive(:name).and_return(:server)
      apply(exec('first', command: '/bin/true'))
      expect(files).to be_empty
    end

    it 'writes nothing of a later run without it, and begins anew with one that has it' do
      2.times { apply(resource(:notify, 'a'), resource(:notify, 'b')) }
      expect(files.size).to eq(2)
      expect(told.map(&:first)).to eq([1, 2])
      finished(catalog_of(resource(:notify, 'c')))
      expect(files.size).to eq(2)
    end

    it 'ends with a run that never came to its report' do
      catalog_of(resource(:notify, 'a'), type.new(name: 'x', spool: spool, socket: '/nonexistent', helper: '/nonexistent')).apply
      expect(lines.last.keys).to eq(['event'])
      finished(catalog_of(resource(:notify, 'c')))
      expect(lines.size).to eq(2)
      apply(resource(:notify, 'd'))
      expect(files.size).to eq(2)
      files.each { |name| File.open("#{spool}/#{name}") { |file| expect(file.flock(File::LOCK_EX | File::LOCK_NB)).to eq(0) } }
    end
  end

  context 'with filters' do
    let(:some) do
      [
        resource(:notify, 'a web', tag: 'shop'), exec('a web', command: '/bin/true'), exec('another', command: '/bin/false', tag: 'shop'),
        resource(:notify, 'web[1].example.com'),
      ]
    end

    {
      { types: ['NOTIFY'] } => ['Notify[a web]', 'Notify[web[1].example.com]'],
      { titles: ['a*'] } => ['Notify[a web]', 'Exec[a web]', 'Exec[another]'],
      { titles: ['web[1].*', 'another'] } => ['Exec[another]', 'Notify[web[1].example.com]'],
      { titles: ['a'] } => [],
      { tags: %w[Shop none] } => ['Notify[a web]', 'Exec[another]'],
      { types: ['exec'], tags: ['shop'] } => ['Exec[another]'],
      { only: 'failed' } => ['Exec[another]'],
      { only: 'corrective' } => [],
    }.each do |filters, wanted|
      it "tells what fits #{filters}, and always the end" do
        apply(*some, **filters)
        expect(told.map { |one| one[1] }).to eq(wanted)
        expect(told.map(&:first)).to eq((1..wanted.size).to_a)
        expect(ended).to include('n' => wanted.size + 1, 'status' => 'failed')
      end
    end

    it 'tells what was undone' do
      allow_any_instance_of(Puppet::Transaction::Event).to receive(:corrective_change).and_return(true)
      apply(resource(:notify, 'a'), only: 'corrective')
      expect(events).to contain_exactly(include('resource' => 'Notify[a]', 'corrective' => true))
    end
  end

  context 'with bounds' do
    def bounds(**changed)
      allow(PuppetX::Again::Events::Spool).to receive(:bounds).and_return(PuppetX::Again::Events::Spool.bounds.merge(changed))
    end

    it 'drops what would be too much for a run, counts it, and has room for the end' do
      bounds(run: 2000, kept: 1000)
      apply(*(1..20).map { |number| resource(:notify, "notice #{number}") })
      expect(events.size).to be_between(2, 10)
      expect(ended).to include('n' => 21, 'dropped' => 20 - events.size)
      expect(File.size("#{spool}/#{files.first}") - lines.last.to_json.bytesize).to be <= 1001
    end

    it 'tells not all of very many classes, and how many more there are, in a line that the service reads' do
      catalog = catalog_of(resource(:notify, 'a'), type.new(name: 'x', spool: spool, socket: '/nonexistent', helper: '/nonexistent'))
      catalog.add_class(*(1..1500).map { |number| "profile::#{'x' * 200}::#{number}" })
      finished(catalog)
      expect(ended['classes'].first(2)).to eq(['settings', 'profile::lb'])
      expect(ended['classes'].sum(&:bytesize)).to be_between(60 << 10, 64 << 10)
      expect(ended['classes'].size + ended['more_classes']).to eq(1502)
      expect(lines.last.to_json.bytesize).to be < 256 << 10
    end

    it 'counts an event whose line is longer than the service reads' do
      bounds(line: 2000)
      apply(resource(:notify, 'x' * 2000), resource(:notify, 'b'))
      expect(told).to eq([[2, 'Notify[b]', 'changed']])
      expect(ended).to include('n' => 3, 'dropped' => 1)
    end

    it 'removes runs that are told, then the oldest, and says how many were not told' do
      bounds(together: 250, files: 4)
      (1..4).each { |number| File.write("#{spool}/000000000000#{number}-#{'a' * 32}#{'@told' if number == 3}", 'x' * 100) }
      File.write("#{spool}/other", 'x' * 1000)
      apply
      expect(files).to match(["0000000000002-#{'a' * 32}", "0000000000004-#{'a' * 32}", %r{\A1}, 'other'])
      expect(JSON.parse(File.readlines("#{spool}/#{files[2]}").first)['begun']['lost']).to eq(1)
    end

    it 'adds to them what those had to do without, unless that is told' do
      bounds(files: 1)
      first = JSON.generate(begun: { lost: 5 })
      ["1-#{'a' * 32}", "2-#{'a' * 32}@told", "3-#{'a' * 32}", "new-4-#{'a' * 32}"].each { |name| File.write("#{spool}/#{name}", "#{first}\n") }
      File.write("#{spool}/0-#{'a' * 32}", "[7]\n")
      apply
      expect(files.size).to eq(1)
      expect(lines.first['begun']['lost']).to eq(4 + 15)
    end

    it 'does not wait for what is no file' do
      bounds(files: 1)
      pipe = "#{spool}/0-#{'a' * 32}"
      File.mkfifo(pipe)
      # Somebody has it open, and says nothing.
      File.open(pipe, File::RDWR | File::NONBLOCK) { Timeout.timeout(60) { apply } }
      expect(lines.first['begun']['lost']).to eq(1)
    end

    it 'removes none too many for their number' do
      bounds(files: 3)
      (1..4).each { |number| File.write("#{spool}/000000000000#{number}-#{'a' * 32}", 'x') }
      apply
      expect(files.map { |name| name[0, 13] }).to match(%w[0000000000003 0000000000004] + [%r{\A1}])
      expect(lines.first['begun']['lost']).to eq(2)
    end
  end

  context 'with a spool that is not there' do
    before { Dir.rmdir(spool) }

    it 'tells all once the run has made it' do
      apply(resource(:notify, 'a'), resource(:notify, 'b'), resource(:file, spool, ensure: 'directory'), resource(:notify, 'c'))
      expect(told).to eq([[1, 'Notify[a]', 'changed'], [2, 'Notify[b]', 'changed'], [3, "File[#{spool}]", 'changed'], [4, 'Notify[c]', 'changed']])
      expect(lines.first.keys).to eq(['begun'])
      expect(ended).to include('dropped' => 0)
      expect(warnings).to be_empty
    end

    it 'warns once, and fails nothing' do
      expect(apply(*(1..3).map { |number| resource(:notify, "notice #{number}") }).status).to eq('changed')
      expect(warnings).to eq(["not all events of this run are told: there is no #{spool}"])
    end

    it 'counts what could not be written then' do
      allow_any_instance_of(File).to receive(:syswrite).and_wrap_original do |write, text|
        raise Errno::ENOSPC if text.include?('Notify[a]')

        write.call(text)
      end
      apply(resource(:notify, 'a'), resource(:notify, 'b'), resource(:file, spool, ensure: 'directory'))
      expect(told.map(&:first)).to eq([2, 3])
      expect(ended).to include('dropped' => 1)
    end

    it 'keeps no more than a bound until then' do
      allow(PuppetX::Again::Events::Spool).to receive(:bounds).and_return(PuppetX::Again::Events::Spool.bounds.merge(waiting: 600))
      apply(*(1..9).map { |number| resource(:notify, "notice #{number}") }, resource(:file, spool, ensure: 'directory'))
      kept = told.size - 1
      expect(kept).to be_between(1, 5)
      expect(told.map(&:first)).to eq([*1..kept, 10])
      expect(ended).to include('dropped' => 9 - kept)
    end
  end

  it 'warns once of a spool that cannot be written, and fails nothing' do
    FileUtils.remove_entry(spool)
    File.write(spool, '')
    expect(apply(*(1..3).map { |number| resource(:notify, "notice #{number}") }).status).to eq('changed')
    expect(warnings).to contain_exactly(%r{\Anot all events of this run are told: Not a directory})
    FileUtils.remove_entry(spool)
    Dir.mkdir(spool)
  end

  it 'leaves no half of a line where the disk is full, and counts what is missing' do
    full = 0
    allow_any_instance_of(File).to receive(:syswrite).and_wrap_original do |write, text|
      next write.call(text) unless text.include?('"event"') && (full += 1) > 1 && full < 4

      write.call(text[0, 9])
      raise Errno::ENOSPC if full == 2

      9
    end
    apply(*(1..4).map { |number| resource(:notify, "notice #{number}") })
    expect(told.map(&:first)).to eq([1, 4])
    expect(ended).to include('n' => 5, 'dropped' => 2)
    expect(warnings).to eq(['not all events of this run are told: No space left on device'])
  end

  it 'fails nothing, whatever goes wrong' do
    allow_any_instance_of(PuppetX::Again::Events::Publisher).to receive(:line).and_raise('what')
    expect(apply(resource(:notify, 'a')).status).to eq('changed')
    expect(warnings).to eq(['not all events of this run are told: what'])
    expect(ended).to include('n' => 2, 'dropped' => 1)
  end

  it 'refuses what it cannot use' do
    expect { type.new(name: 'x', spool: 'spool') }.to raise_error(Puppet::Error, %r{not an absolute path})
    expect { type.new(name: 'x', types: [7]) }.to raise_error(Puppet::Error, %r{have to be strings})
    expect { type.new(name: 'x', only: 'changed') }.to raise_error(Puppet::Error, %r{only})
  end

  describe 'secrets' do
    let(:secret) { 'geheim7' }
    let(:text) { files.map { |name| File.read("#{spool}/#{name}") }.join }

    # What a catalog has of them.
    def planted
      container = Puppet::Type.type(:component).new(name: "mydb[echo #{secret}]")
      [
        exec("echo #{secret}", path: '/bin'), exec("/bin/sh -c 'exit 3; #{secret}'"), exec('by its command', command: "/bin/echo #{secret}"),
        exec("as an array #{secret}", command: ['/bin/sh', '-c', "true as an array #{secret}"]), exec(secret, command: "/bin/echo #{secret}"),
        exec("say: /bin/echo #{secret}", command: "/bin/echo #{secret}"), exec("/bin/test #{secret} = x", command: '/bin/true', unless: "/bin/test #{secret} = x"),
        resource(:file, "#{scratch}/hidden", content: secret, show_diff: false),
        sensitive(:file, "#{scratch}/sensitive", :content, content: secret), sensitive(:notify, 'sensitive', :message, message: secret),
        sensitive(:exec, 'sensitive', :command, command: "/bin/sh -c 'exit 3; #{secret}'"), container,
      ]
    end

    def sensitive(kind, name, parameter, **more)
      described = Puppet::Resource.new(kind.to_s, name, parameters: more)
      described.sensitive_parameters = [parameter]
      described.to_ral
    end

    it 'are not told' do
      apply(*planted)
      expect(events.size).to eq(11)
      expect(text).not_to include(secret)
      expect(told.map { |one| one[1] }).to include('Exec[hidden]', 'Exec[by its command]', 'Notify[sensitive]')
    end

    it 'are not told where values are, but for what an Exec with a title of its own says of its command' do
      apply(*planted.reject { |one| one.title == 'by its command' }, exec('fails', command: '/bin/false'), values: true)
      expect(text).not_to include(secret)
      expect(events.last).to include('old' => 'notrun', 'new' => "['0']", 'message' => include('/bin/false'))
    end

    it 'hides a title that is a command in what contains it, too' do
      status = instance_double(Puppet::Resource::Status, containment_path: ["Mydb[echo #{secret}]", "Exec[echo #{secret}]"], tags: [], resource_type: 'Exec', file: nil, line: nil)
      line = PuppetX::Again::Events::Publisher.new({}).line(1, exec("echo #{secret}", path: '/bin'), status, nil, 'failed')
      expect(JSON.parse(line)['event']).to include('within' => ['Mydb[hidden]'], 'resource' => 'Exec[hidden]')
    end

    # As a manifest has them: resources in a class or define.
    def contained(name, *inner)
      watching = type.new(name: 'this node', spool: spool, socket: '/nonexistent', helper: '/nonexistent')
      catalog = catalog_of(*inner, watching)
      container = Puppet::Type.type(:component).new(name: name)
      catalog.add_resource(container)
      inner.each { |one| catalog.add_edge(container, one) }
      finished(catalog)
    end

    it 'hides the title of a define of which a command is made, in all that it contains' do
      contained("Mydb[x::#{secret}]", exec('step', command: "/bin/echo x::#{secret}", tag: "x::#{secret}"), resource(:notify, 'beside', tag: ["x::#{secret}", 'shop']))
      expect(events.map { |event| event['within'] }).to eq([['Mydb[hidden]'], ['Mydb[hidden]']])
      expect(events.last['tags']).to include('shop')
      expect(text).not_to include(secret)
    end

    it 'hides it also where the Exec has another title, and no title that is in no command' do
      contained("Mydb[/bin/echo #{secret}]", exec("run /bin/echo #{secret}", command: "/bin/echo #{secret}"))
      expect(text).not_to include(secret)
      contained('Mydb[plain]', exec('step', command: '/bin/true'))
      expect(events.first['within']).to eq(['Mydb[plain]'])
    end

    it 'hides no class, and not the class main, which has no title in a path' do
      contained('Class[Main]', exec('step', command: '/bin/true'))
      expect(events.first['within']).to eq(['Main'])
      contained('Class[True]', exec('step', command: '/bin/true'))
      expect(events.first['within']).to eq(['True'])
    end

    it 'hides no container for a title that is a part of its type only, and all for commands that are no text' do
      inside = lambda do |resource|
        status = instance_double(Puppet::Resource::Status, containment_path: ['Class[Profile]', 'Mydb[x]', 'Exec[y]'], tags: [], resource_type: 'Exec', file: nil, line: nil)
        JSON.parse(PuppetX::Again::Events::Publisher.new({}).line(1, resource, status, nil, 'failed'))['event'].values_at('resource', 'within')
      end
      expect(inside[exec('ss', command: '/bin/echo ss')]).to eq(['Exec[hidden]', ['Class[Profile]', 'Mydb[x]']])
      mixed = exec('mixed', command: ['/bin/echo', "\xff".b, "\u00e9"])
      expect(inside[mixed].first).to eq('Exec[hidden]')
    end

    it 'tells values that are none, as Puppet shows them, and not all of a long one' do
      File.write("#{scratch}/mode", '', perm: 0o600)
      apply(resource(:file, "#{scratch}/mode", mode: '0644'), resource(:notify, 'long', message: 'x' * 999), values: true)
      expect(events.first).to include('property' => 'mode', 'old' => '0600', 'new' => '0644', 'message' => "mode changed '0600' to '0644'")
      expect(events.last['new'].size).to eq(512)
      expect(warnings).to be_empty
    end

    it 'tells texts that are no UTF-8' do
      line = PuppetX::Again::Events::Publisher.new({}).json(event: { within: ["a\xff\u00e9".b], n: 1 })
      expect(JSON.parse(line)).to eq('event' => { 'within' => ["a\ufffd\u00e9"], 'n' => 1 })
    end
  end
end
