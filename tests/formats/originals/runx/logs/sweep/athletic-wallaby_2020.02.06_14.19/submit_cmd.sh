cd /home/logs/sweep/athletic-wallaby_2020.02.06_14.19/code; PYTHONPATH=  python train.py --lr 0.01 --solver sgd --logdir /home/logs/sweep/athletic-wallaby_2020.02.06_14.19 
