# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Endpoint' do
  it { is_expected.to allow_values('etcd1.example.com', 'etcd1:2379', '192.0.2.1:4222', '[2001:db8::1]', '[2001:db8::1]:2379') }
  it { is_expected.not_to allow_values('', 'https://etcd1', 'etcd1:', 'etcd1:123456', '2001:db8::1', "a\nb", 'a b', 1) }
end
